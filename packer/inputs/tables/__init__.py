"""The parser of CSV in C; ``packer/tables/reading/record_parser.py`` calls it."""
