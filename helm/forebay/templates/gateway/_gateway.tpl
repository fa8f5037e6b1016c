{{/*
Gateways: a pod of its own for each broker that somebody else's chart or operator runs. Names, the brokers' indexes, and what cannot be.
Invariants: gateway N stands before broker N alone; `config` says {index} where the brokers' addresses differ.
*/}}
{{- define "forebay.gateway.fullname" -}}
{{- include "forebay.fullname" . }}
{{- end }}

{{- define "forebay.gateway.headless" -}}
{{- include "forebay.fullname" . }}-gateways
{{- end }}

{{/* The brokers' indexes, separated by commas; stops the rendering where gateways cannot be what the values say. */}}
{{- define "forebay.gateway.indexes" -}}
{{- if .Values.broker.enabled }}
{{- fail "mode gateway-per-broker is for brokers that this chart does not run; broker.enabled must be false" }}
{{- end }}
{{- if .Values.injector.enabled }}
{{- fail "mode gateway-per-broker and injector.enabled would put two Forebays before one broker; choose one" }}
{{- end }}
{{- range .Values.config.listeners }}
{{- if not (contains "{index}" .upstream) }}
{{- fail (printf "mode gateway-per-broker: the upstream %q is the same for every gateway; write {index} where the brokers' names differ" .upstream) }}
{{- end }}
{{- end }}
{{- if and (dig "throttle" "disks" "" .Values.config) (ne .Values.gateway.placement "required") }}
{{- fail "mode gateway-per-broker: throttle.disks are those of the gateway's own node; set gateway.placement: required, or name none" }}
{{- end }}
{{- if and (ne .Values.gateway.placement "none") (not .Values.gateway.brokerPodLabels) }}
{{- fail "mode gateway-per-broker: gateway.brokerPodLabels must select the brokers' pods, or gateway.placement be none" }}
{{- end }}
{{- $first := int .Values.gateway.firstIndex }}
{{- untilStep $first (add $first .Values.gateway.brokers | int) 1 | join "," }}
{{- end }}

{{/* The term of an affinity: on the node of the broker whose label has the value that the gateway's has. */}}
{{- define "forebay.gateway.beside" -}}
topologyKey: {{ .Values.gateway.topologyKey }}
labelSelector:
  matchLabels:
    {{- toYaml .Values.gateway.brokerPodLabels | nindent 4 }}
{{- with .Values.gateway.matchLabelKeys }}
matchLabelKeys:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.gateway.brokerNamespace }}
namespaces: [{{ . }}]
{{- end }}
{{- end }}
