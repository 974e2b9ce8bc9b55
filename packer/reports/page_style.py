"""The style of the page: light, or dark where the reader's system is."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--card:#f6f7f9;--ink:#1d2127;--faint:#667080;--line:#dfe3e8;--bar:#d9480f;
--cool:#3b6fb6;--warn:#9a3412;--warn-paper:#fff4ec}
@media(prefers-color-scheme:dark){:root{--paper:#14171b;--card:#1d2126;--ink:#e6e8eb;--faint:#98a2b0;--line:#31373f;--bar:#f0743a;
--cool:#6ea3ea;--warn:#ffb38a;--warn-paper:#2c211b}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",
Arial,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 24px 64px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:19px;margin:44px 0 10px;padding-top:14px;border-top:1px solid var(--line)}
h3{font-size:15px;margin:22px 0 8px;overflow-wrap:anywhere}
p{margin:6px 0 10px;max-width:78ch}
.faint{color:var(--faint)}
nav{margin:14px 0 0;display:flex;flex-wrap:wrap;gap:4px 16px}
a{color:var(--cool)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin:20px 0 0}
.tile{background:var(--card);border-radius:8px;padding:10px 14px;border:1px solid transparent}
.tile b{display:block;font-size:21px;line-height:1.3;font-variant-numeric:tabular-nums}
.tile span{color:var(--faint);font-size:13px}
.tile.warn{background:var(--warn-paper)}.tile.warn b{color:var(--warn)}
.notes{margin:18px 0 0;padding:12px 18px 12px 34px;background:var(--warn-paper);border-radius:8px}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;font-weight:600;color:var(--faint);border-bottom:1px solid var(--line);padding:4px 14px 4px 0;
white-space:nowrap;vertical-align:bottom}
td{padding:4px 14px 4px 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
th:last-child,td:last-child{padding-right:0}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.m{vertical-align:middle}
.b{width:34%;min-width:110px;vertical-align:middle}
.name{min-width:120px}
code{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.track{height:12px;background:var(--card);border-radius:3px;overflow:hidden;position:relative}
.middle::after{content:"";position:absolute;left:50%;top:0;bottom:0;width:1px;background:var(--faint)}
.bar{height:100%;background:var(--bar);border-radius:2px;min-width:1px}
.bar.cool{background:var(--cool)}
.histogram{margin:0;max-width:300px;min-width:150px}
.histogram svg{display:block;width:100%;height:56px;fill:var(--bar);background:var(--card);border-radius:3px}
.histogram.large{max-width:420px}
figcaption{display:flex;justify-content:space-between;gap:8px;color:var(--faint);font-size:12px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(260px,1fr));gap:18px}
.charts h3{margin-top:4px}
.sheet{display:grid;grid-template-columns:repeat(auto-fill,minmax(118px,1fr));gap:12px 10px;margin-top:12px}
.shot{margin:0;min-width:0;font-size:12px;line-height:1.35}
.shot .frame{background:var(--card);border-radius:5px;height:132px;display:flex;align-items:center;justify-content:center;
overflow:hidden}
.shot img{max-width:100%;max-height:100%;display:block}
.shot b,.shot span{display:block;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.shot span{color:var(--faint)}
.means .frame{height:112px}
.means img{width:96px;height:96px;border-radius:3px}
.pages>input{position:absolute;opacity:0;pointer-events:none}
.pages>label{display:inline-block;min-width:30px;text-align:center;padding:2px 8px;margin:0 4px 4px 0;
border:1px solid var(--line);border-radius:5px;cursor:pointer;font-size:13px}
.pages>input:checked+label{background:var(--ink);color:var(--paper);border-color:var(--ink)}
.pages>input:focus-visible+label{outline:2px solid var(--cool);outline-offset:1px}
.pages>.sheet{display:none}
.pairs{display:grid;grid-template-columns:repeat(auto-fill,minmax(300px,1fr));gap:14px;margin-top:10px}
.pair{background:var(--card);border-radius:8px;padding:10px}
.pair .two{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:8px}
.pair .frame{background:var(--paper)}
.pair .why{font-size:12px;color:var(--faint);margin:6px 0 0}
details{margin:8px 0}summary{cursor:pointer;color:var(--cool)}
footer{margin-top:48px;padding-top:12px;border-top:1px solid var(--line);color:var(--faint);font-size:13px}
@media print{.pages>.sheet{display:grid!important}.pages>label{display:none}}
"""
