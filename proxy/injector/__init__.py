"""`forebay injector`: a Kubernetes admission webhook that puts the sidecar into pods that ask for it by a label."""
