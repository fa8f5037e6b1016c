{{/*
The injector: a webhook that puts the sidecar into labelled pods of this namespace, whoever makes them. Names, and what cannot be.
Invariant: what it puts in is what the named templates give to a StatefulSet of one's own.
*/}}
{{- define "forebay.injector.fullname" -}}
{{- include "forebay.fullname" . }}-injector
{{- end }}

{{/* The label that a pod asks with. */}}
{{- define "forebay.injector.label" -}}
forebay/inject: {{ include "forebay.fullname" . }}
{{- end }}

{{- define "forebay.injector.check" -}}
{{- if .Values.broker.enabled }}
{{- fail "injector.enabled is for brokers that this chart does not run; broker.enabled must be false" }}
{{- end }}
{{- if .Values.accessLogClaim.size }}
{{- fail "injector.enabled: a webhook cannot give a StatefulSet claims; leave accessLogClaim.size empty, or keep the log in accessLogVolume" }}
{{- end }}
{{- end }}

{{/* What the injector adds to a pod, as JSON. */}}
{{- define "forebay.injector.sidecar" -}}
{{- include "forebay.injector.check" . }}
{{- $grace := include "forebay.terminationGracePeriodSeconds" (list . 0) | int }}
{{- dict
  "initContainers" (include "forebay.sidecar" . | fromYamlArray)
  "volumes" (include "forebay.volumes" . | fromYamlArray)
  "labels" (include "forebay.podLabels" . | fromYaml)
  "annotations" (include "forebay.podAnnotations" . | fromYaml)
  "imagePullSecrets" .Values.imagePullSecrets
  "graceSeconds" $grace
  | toPrettyJson }}
{{- end }}
