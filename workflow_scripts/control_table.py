from pathlib import Path

from ddp_tokens.controls import figure, page, table
from ddp_tokens.files import write_json, write_text
from ddp_tokens.layout import Layout
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    files = snakemake.output
    judged = table.judge_all(read_settings(snakemake.input.settings), Layout(Path(files.csv).parent))
    write_json(files.verdicts, table.document(judged))
    write_text(files.csv, table.csv(judged))
    write_text(files.page, page.controls_page(judged))
    figure.save_controls(judged, [Path(path) for path in (files.figure, files.figure_svg, files.figure_pdf)])
