{{/*
Names and labels. Every template here takes the chart's own context: `.` in this chart, `.Subcharts.forebay` in a parent's.
Invariant: the label forebay/sidecar is on every pod that carries a sidecar of this release, and is what Services select by.
*/}}
{{- define "forebay.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 52 characters: a StatefulSet's pods carry its name in a label that adds a hash of up to 11. */}}
{{- define "forebay.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "forebay.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "forebay.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "forebay.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "forebay.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "forebay.selectorLabels" -}}
app.kubernetes.io/name: {{ include "forebay.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* For the labels of the pod that carries the sidecar. */}}
{{- define "forebay.podLabels" -}}
forebay/sidecar: {{ include "forebay.fullname" . }}
{{- end }}

{{/* For the annotations of that pod: a changed configuration rolls it. Forebay reads its configuration once, at start. */}}
{{- define "forebay.podAnnotations" -}}
forebay/config-checksum: {{ toYaml .Values.config | sha256sum }}
{{- end }}
