"""How pages look: one style sheet for light and dark, put into each page."""

PEER_COLOURS = {
    "durable": "#0d9488",
    "native": "#d97706",
    "checkpoint": "#7c5cff",
    "parquet": "#2f7ed8",
    "dask": "#d1477f",
    "celeborn": "#6d8f1f",
}
"""Readable on white and on near-black alike; pictures use them too."""

OUTCOME_COLOURS = {
    "done": "#7b93ad",
    "reused": "#0d9488",
    "again": "#e0523d",
    "retry": "#e3a33b",
    "open": "#5b7fd6",
    "lost": "#9aa0a8",
}

STYLE = """
:root { color-scheme: light dark; --paper: #fbfbfa; --card: #ffffff; --ink: #1c2127;
  --soft: #5d6773; --line: #dfe3e8; --lane: #f3f5f7; --good: #0b7a70; --bad: #c22f1d;
  --fault: #d11a3a; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --card: #1c2026; --ink: #e7eaee;
  --soft: #9aa5b1; --line: #313841; --lane: #232830; --good: #35c2b2; --bad: #ff7a66;
  --fault: #ff5570; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 48px 0 4px; }
h3 { font-size: 15px; margin: 30px 0 0; }
.card h3 { font-size: 14px; margin: 14px 0 0; } .card h3:first-child { margin-top: 0; }
p { margin: 4px 0 12px; max-width: 76ch; }
.soft { color: var(--soft); font-size: 14px; }
code, .mono { font-family: ui-monospace, "SFMono-Regular", Menlo, "DejaVu Sans Mono", monospace;
  font-size: 13px; overflow-wrap: anywhere; }
.verdict { display: inline-block; border-radius: 999px; padding: 3px 14px; font-weight: 600;
  font-size: 14px; margin: 10px 0 4px; border: 1.5px solid var(--good); color: var(--good); }
.verdict.bad { border-color: var(--bad); color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 14px;
  margin: 20px 0 8px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 16px 18px; }
.tile .label { color: var(--soft); font-size: 13px; }
.tile .value { font-size: 30px; font-weight: 650; letter-spacing: -0.02em; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.tile .beside { font-size: 14px; color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 16px 18px; margin: 12px 0; }
.chart { display: grid; grid-template-columns: minmax(88px, max-content) 1fr; gap: 5px 12px;
  align-items: center; }
.chart .group { grid-column: 1 / -1; font-weight: 600; font-size: 14px; margin-top: 12px; }
.chart .group:first-child { margin-top: 0; }
.chart .who { font-size: 13px; color: var(--soft); text-align: right; }
.chart .track { display: flex; align-items: center; gap: 8px; min-height: 20px; }
.chart .bar { height: 16px; border-radius: 0 4px 4px 0; min-width: 2px; }
.chart .number { font-size: 13px; font-variant-numeric: tabular-nums; white-space: nowrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px;
  font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 600; font-size: 12.5px; }
th, td { padding: 6px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th.n, td.n { text-align: right; }
td.wrap { white-space: normal; }
tr.first td { border-top: 2px solid var(--line); }
td.good { color: var(--good); font-weight: 600; } td.bad { color: var(--bad); font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; font-size: 13px; color: var(--soft);
  margin: 10px 0 4px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.legend i { width: 14px; height: 12px; border-radius: 3px; display: inline-block; }
.legend .key-fault { height: 0; border-top: 2px dashed var(--fault); }
.legend .key-note { height: 0; border-top: 2px dotted var(--soft); }
.legend .key-compact, .legend .key-replace { width: 10px; height: 10px; border-radius: 0;
  transform: rotate(45deg); background: #7c5cff; }
.legend .key-replace { background: #d97706; }
.legend .key-break { background: repeating-linear-gradient(115deg, var(--soft) 0 2px,
  var(--lane) 2px 6px); }
svg.timeline { display: block; width: 100%; min-width: 760px; height: auto; }
svg text { fill: var(--ink); font-family: inherit; }
svg .dim { fill: var(--soft); } svg .lane { fill: var(--lane); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .fault-line { stroke: var(--fault); stroke-width: 1.6; stroke-dasharray: 5 3; }
svg .fault-text { fill: var(--fault); font-weight: 600; }
svg .note-line { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 2 3; }
svg .break { fill: var(--card); }
svg .break-line { stroke: var(--soft); stroke-width: 1.4; }
svg .compact { fill: #7c5cff; stroke: var(--card); stroke-width: 1.2; }
svg .replace { fill: #d97706; stroke: var(--card); stroke-width: 1.2; }
svg .lost { fill-opacity: 0.28; stroke: var(--fault); stroke-width: 1; stroke-dasharray: 3 2; }
svg .kill { stroke: var(--fault); stroke-width: 2.6; stroke-linecap: round; }
ul.plain { list-style: none; padding: 0; margin: 6px 0; font-size: 13.5px; }
ul.plain li { padding: 2px 0; }
footer { margin-top: 48px; color: var(--soft); font-size: 13px; }
@media (max-width: 640px) { main { padding: 24px 14px 48px; } h1 { font-size: 24px; }
  .tiles { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; } }
"""
