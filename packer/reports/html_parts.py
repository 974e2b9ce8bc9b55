"""Parts of the page in HTML and SVG: escaped text, bars, histograms, tables; the light and dark style."""

from __future__ import annotations

import html
from collections.abc import Sequence

from packer.path_text import visible

_MOST_LETTERS = 300


def text(value: object, most: int = _MOST_LETTERS) -> str:
    """Return a text as HTML without markup, also safe in a quoted attribute."""
    plain = str(value)
    plain = plain if len(plain) <= most else plain[: most - 1] + "…"
    return html.escape(visible(plain), quote=True)


def faint(inner: str) -> str:
    """Return a paragraph of grey text, "" for no text. inner: HTML."""
    return f'<p class="faint">{inner}</p>' if inner else ""


def bar(share: float) -> str:
    """Return a bar. share: of the full length, 0 to 1."""
    return f'<div class="track"><div class="bar" style="width:{100 * share:.2f}%"></div></div>'


def histogram(counts: Sequence[int], least: str, most: str, title: str = "") -> str:
    """Return a histogram of equal bins. least, most: labels of its ends; title: its accessible name."""
    if not counts:
        return ""
    top, width = max(max(counts), 1), 240 / len(counts)
    rects = "".join(
        f'<rect x="{i * width:.2f}" y="{60 - 60 * max(n / top, 0.02):.2f}"'
        f' width="{max(width - 0.8, 0.4):.2f}"'
        f' height="{60 * max(n / top, 0.02):.2f}"><title>{n:,}</title></rect>'
        for i, n in enumerate(counts)
        if n
    )
    return (
        '<figure class="histogram"><svg viewBox="0 0 240 60" preserveAspectRatio="none" role="img"'
        f' aria-label="{text(title)}">'
        f"{rects}</svg><figcaption><span>{text(least)}</span><span>{text(most)}</span></figcaption></figure>"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kinds: Sequence[str] = ()) -> str:
    """Return a table. head, rows: HTML; kinds: the CSS class of each column."""
    kinds = [*kinds, *[""] * (len(head) - len(kinds))]
    tops = "".join(f'<th class="{k}">{cell}</th>' for k, cell in zip(kinds, head, strict=True))
    lines = "".join(
        "<tr>" + "".join(f'<td class="{k}">{cell}</td>' for k, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{tops}</tr></thead><tbody>{lines}</tbody></table></div>'


STYLE = """
:root{color-scheme:light dark;--paper:#fff;--card:#f6f7f9;--ink:#1d2127;--faint:#667080;--line:#dfe3e8;
--bar:#d9480f;--warn:#9a3412;--warn-paper:#fff4ec}
@media(prefers-color-scheme:dark){:root{--paper:#14171b;--card:#1d2126;--ink:#e6e8eb;--faint:#98a2b0;
--line:#31373f;--bar:#f0743a;--warn:#ffb38a;--warn-paper:#2c211b}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 24px 64px}
h1,h3{overflow-wrap:anywhere}
h2{margin:44px 0 10px;padding-top:14px;border-top:1px solid var(--line)}
.faint,footer,figcaption,th,.tile span,.shot span,.why{color:var(--faint)}
nav{margin:14px 0 0;display:flex;flex-wrap:wrap;gap:4px 16px}
a{color:inherit}
pre{background:var(--card);padding:12px;border-radius:8px;white-space:pre-wrap;overflow-wrap:anywhere;
font-size:13px;text-indent:9ch hanging each-line}
.tiles,.charts,.sheet,.pairs,.two{display:grid;gap:12px;margin:12px 0 0}
.tiles{grid-template-columns:repeat(auto-fill,minmax(150px,1fr))}
.tile,.pair{background:var(--card);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:21px}
.tile.warn,.notes{background:var(--warn-paper)}.tile.warn b{color:var(--warn)}
.notes{padding:12px 18px 12px 34px;border-radius:8px}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;border-bottom:1px solid var(--line);padding:4px 14px 4px 0;vertical-align:middle;
overflow-wrap:break-word}
.n{text-align:right;width:1%;font-variant-numeric:tabular-nums;white-space:nowrap}
.b{width:60%;min-width:110px}td p{margin:0}
.track{height:12px;background:var(--card);border-radius:3px}
.bar{height:100%;background:var(--bar);border-radius:2px;min-width:1px}
.histogram{margin:0;max-width:300px;min-width:150px}
.histogram svg{display:block;width:100%;height:56px;fill:var(--bar);background:var(--card)}
figcaption{display:flex;justify-content:space-between;font-size:12px}
.charts{grid-template-columns:repeat(auto-fill,minmax(260px,1fr))}
.sheet{grid-template-columns:repeat(auto-fill,minmax(104px,1fr))}
.faint i{display:inline-block;width:.8em;height:.8em;margin:0 .4em 0 1em}.faint i:first-child{margin-left:0}
.shot{margin:0;min-width:0;font-size:12px}
.shot .frame{background:var(--card);height:132px;display:flex;align-items:center;justify-content:center}
.shot img{max-width:100%;max-height:100%}
.shot b,.shot span{display:block;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.pairs{grid-template-columns:repeat(auto-fill,minmax(300px,1fr))}
.two{grid-template-columns:minmax(0,1fr) minmax(0,1fr)}
@media(max-width:640px){main{padding:16px 16px 40px}.b{min-width:50px}
#columns>.wide>table>thead{display:none}
#columns>.wide>table>tbody>tr{display:flex;flex-wrap:wrap;gap:2px 14px;padding:8px 0;
border-bottom:1px solid var(--line)}
#columns>.wide>table>tbody>tr>td{border:0;padding:0;width:auto}
#columns>.wide>table>tbody>tr>td:is(:first-child,:nth-child(5)){flex:0 0 100%}
#columns>.wide>table>tbody>tr>.n:not(:empty)::after{content:" missing"}}
"""
