"""What known trainers do with the windows of `minimum`, audited: the table results/audit/trainers.csv."""
