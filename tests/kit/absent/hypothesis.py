"""Stands before Hypothesis on the path of a Forebay that tests start: there is none where Forebay is installed.

kio imports it wherever it is found, which takes a third of a Forebay's start.
"""

raise ModuleNotFoundError("No module named 'hypothesis'", name="hypothesis")
