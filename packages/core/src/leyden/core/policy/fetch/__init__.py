"""Pretrained policies that the package index offers, as Hugging Face folders."""
