"""The style of the page: light, or dark where the reader's system is."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--card:#f6f7f9;--ink:#1d2127;--faint:#667080;--line:#dfe3e8;--bar:#d9480f;
--warn:#9a3412;--warn-paper:#fff4ec}
@media(prefers-color-scheme:dark){:root{--paper:#14171b;--card:#1d2126;--ink:#e6e8eb;--faint:#98a2b0;--line:#31373f;--bar:#f0743a;
--warn:#ffb38a;--warn-paper:#2c211b}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 24px 64px}
h1,h3{overflow-wrap:anywhere}
h2{margin:44px 0 10px;padding-top:14px;border-top:1px solid var(--line)}
.faint,footer,figcaption,th,.tile span,.shot span,.why{color:var(--faint)}
nav{margin:14px 0 0;display:flex;flex-wrap:wrap;gap:4px 16px}
a{color:inherit}
pre{background:var(--card);padding:12px;border-radius:8px;overflow-x:auto;font-size:13px}
.tiles,.charts,.sheet,.pairs,.two{display:grid;gap:12px;margin:12px 0 0}
.tiles{grid-template-columns:repeat(auto-fill,minmax(150px,1fr))}
.tile,.pair{background:var(--card);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:21px}
.tile.warn,.notes{background:var(--warn-paper)}.tile.warn b{color:var(--warn)}
.notes{padding:12px 18px 12px 34px;border-radius:8px}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;border-bottom:1px solid var(--line);padding:4px 14px 4px 0;vertical-align:middle;overflow-wrap:anywhere}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.b{width:34%;min-width:110px}
.track{height:12px;background:var(--card);border-radius:3px}
.bar{height:100%;background:var(--bar);border-radius:2px;min-width:1px}
.histogram{margin:0;max-width:300px;min-width:150px}
.histogram svg{display:block;width:100%;height:56px;fill:var(--bar);background:var(--card)}
figcaption{display:flex;justify-content:space-between;font-size:12px}
.charts{grid-template-columns:repeat(auto-fill,minmax(260px,1fr))}
.sheet{grid-template-columns:repeat(auto-fill,minmax(118px,1fr))}
.shot{margin:0;min-width:0;font-size:12px}
.shot .frame{background:var(--card);height:132px;display:flex;align-items:center;justify-content:center}
.shot img{max-width:100%;max-height:100%}
.shot b,.shot span{display:block;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.pairs{grid-template-columns:repeat(auto-fill,minmax(300px,1fr))}
.two{grid-template-columns:minmax(0,1fr) minmax(0,1fr)}
"""
