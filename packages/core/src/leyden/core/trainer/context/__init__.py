"""The verbs that algorithms are written in, over a real store, gateway and run folder."""
