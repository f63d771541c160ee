from pathlib import Path

from ddp_tokens.files import write_json, write_text
from ddp_tokens.script import logged
from ddp_tokens.trainers import figure, page, table
from ddp_tokens.trainers.cases import CASES

with logged(snakemake.log[0]):
    files = snakemake.output
    trainers = table.read_trainers(CASES, Path(files.csv).parent / "runs", table.this_machine())
    write_json(files.json, table.document(trainers))
    write_text(files.csv, table.csv(trainers.rows))
    write_text(files.page, page.trainers_page(trainers))
    figure.save_trainers(trainers.rows, [Path(path) for path in (files.figure, files.figure_svg, files.figure_pdf)])
