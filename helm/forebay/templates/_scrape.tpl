{{/*
(list CONTEXT MONITOR): how Prometheus asks one Forebay, for a ServiceMonitor's endpoint and a PodMonitor's. MONITOR is a map like
`metrics.serviceMonitor` in values.yaml.
*/}}
{{- define "forebay.scrape" -}}
{{- $context := index . 0 }}
{{- with index . 1 -}}
scheme: {{ include "forebay.adminScheme" $context }}
interval: {{ .interval }}
scrapeTimeout: {{ .scrapeTimeout }}
{{- with .tlsConfig }}
tlsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .authorization }}
authorization:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
