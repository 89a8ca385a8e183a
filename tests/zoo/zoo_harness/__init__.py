"""The harness of the zoo: see tests/zoo/README.md."""
