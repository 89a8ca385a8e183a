"""Codecs, which turn messages into token ids and back: their tokenizers, chat templates and text."""
