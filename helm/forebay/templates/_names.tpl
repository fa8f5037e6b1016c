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
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "forebay.selectorLabels" -}}
app.kubernetes.io/name: {{ include "forebay.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* For the labels of the pod that carries the sidecar. */}}
{{- define "forebay.podLabels" -}}
forebay/sidecar: {{ include "forebay.fullname" . }}
{{- end }}

{{/*
For the annotations of that pod: a changed configuration rolls it, and so does a changed Secret that `checksumSecrets` names. Where
Helm asks no cluster (`helm template`), and where the Secret is not there, its checksum is that of nothing.
*/}}
{{- define "forebay.podAnnotations" -}}
forebay/config-checksum: {{ toYaml .Values.config | sha256sum }}
{{- if .Values.checksumSecrets }}
{{- $data := list }}
{{- range .Values.checksumSecrets }}
{{- $data = append $data (lookup "v1" "Secret" $.Release.Namespace .).data }}
{{- end }}
forebay/secrets-checksum: {{ toJson $data | sha256sum }}
{{- end }}
{{- end }}

{{/* The account of the pods that this chart makes: they ask the API server for nothing. */}}
{{- define "forebay.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "forebay.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* What every pod of this chart begins with: the account, pull secrets, no variables named by Services. */}}
{{- define "forebay.podBasics" -}}
serviceAccountName: {{ include "forebay.serviceAccountName" . }}
automountServiceAccountToken: false
# Otherwise a Service named forebay-* would put variables into Forebay's environment that look like its own.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* (list CONTEXT IMAGE DEFAULT-TAG) → [REGISTRY/]REPOSITORY:TAG or @DIGEST; IMAGE is a map like `image` in values.yaml. */}}
{{- define "forebay.imageOf" -}}
{{- $context := index . 0 }}
{{- $image := index . 1 }}
{{- with $image.registry | default $context.Values.image.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ include "forebay.tag" $image.tag | default (index . 2) }}{{ end }}
{{- end }}

{{/* Where cert-manager puts Forebay's certificate; mounted at /etc/forebay-certificate. */}}
{{- define "forebay.certificateSecret" -}}
{{- include "forebay.fullname" . }}-certificate
{{- end }}

{{/* Items for a Service's `ports`: one for each of `config.listeners`. Numbers: see service-admin.yaml. */}}
{{- define "forebay.clientPorts" -}}
{{- range $index, $listener := .Values.config.listeners }}
- name: {{ $index | eq 0 | ternary "kafka" (printf "kafka-%d" $index) }}
  port: {{ include "forebay.port" $listener.listen }}
  targetPort: {{ include "forebay.port" $listener.listen }}
{{- end }}
{{- end }}
