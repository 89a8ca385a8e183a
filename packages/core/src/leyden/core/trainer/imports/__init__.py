"""Imports: stores of other systems, read into a Leyden store."""
