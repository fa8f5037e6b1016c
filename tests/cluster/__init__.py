"""A Kubernetes cluster of one node on this machine, and the chart's tests on it. See README.md."""
