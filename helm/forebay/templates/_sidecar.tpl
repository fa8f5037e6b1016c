{{/*
The sidecar: items for a pod's `initContainers` and `volumes`.
Invariants: a native sidecar (restartPolicy Always), so that it is up before the broker and down after it. Startup and liveness ask
/livez, never /readyz: /readyz needs the broker, which starts only after the startup probe has passed.
*/}}
{{- define "forebay.sidecar" -}}
{{ include "forebay.container" (list . "forebay.yaml") }}
  restartPolicy: Always
{{- end }}

{{/*
(list CONTEXT FILE): Forebay's container, wherever it runs; FILE is the configuration's name in its volume. $(BROKER_INDEX) stands for the
pod's ordinal there.
*/}}
{{- define "forebay.container" -}}
{{- $file := index . 1 }}
{{- with index . 0 }}
{{- $config := .Values.config }}
{{- $admin := dig "listen" "127.0.0.1:9190" ($config.admin | default dict) }}
{{- if has (include "forebay.host" $admin) (list "127.0.0.1" "localhost" "[::1]") }}
{{- fail "config.admin.listen must not be the loopback: the kubelet's probes and Prometheus come from outside the pod; write \":9190\"" }}
{{- end -}}
- name: forebay
  image: {{ include "forebay.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [serve, --config, {{ printf "/etc/forebay/%s" $file }}]
  {{- $isIndexed := contains "BROKER_INDEX" $file }}
  {{- if or $isIndexed .Values.extraEnv }}
  env:
    {{- if $isIndexed }}
    - name: BROKER_INDEX
      valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
    {{- end }}
    {{- with .Values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  ports:
    {{- range $index, $listener := $config.listeners }}
    - name: {{ $index | eq 0 | ternary "forebay" (printf "forebay-%d" $index) }}
      containerPort: {{ include "forebay.port" $listener.listen }}
    {{- end }}
    - name: forebay-admin
      containerPort: {{ include "forebay.port" $admin }}
  {{- $scheme := include "forebay.adminScheme" . | upper }}
  startupProbe:
    httpGet: {path: /livez, port: forebay-admin, scheme: {{ $scheme }}}
    {{- toYaml .Values.startupProbe | nindent 4 }}
  livenessProbe:
    httpGet: {path: /livez, port: forebay-admin, scheme: {{ $scheme }}}
    {{- toYaml .Values.livenessProbe | nindent 4 }}
  readinessProbe:
    httpGet: {path: /readyz, port: forebay-admin, scheme: {{ $scheme }}}
    {{- toYaml .Values.readinessProbe | nindent 4 }}
  resources:
    requests:
      cpu: {{ .Values.resources.cpu | quote }}
      memory: {{ include "forebay.memory" . }}
    limits:
      {{- if .Values.resources.cpuLimit }}
      cpu: {{ .Values.resources.cpu | quote }}
      {{- end }}
      memory: {{ include "forebay.memory" . }}
  securityContext:
    {{- include "forebay.securityContext" .Values.securityContext | nindent 4 }}
  volumeMounts:
    - name: forebay-config
      mountPath: /etc/forebay
      readOnly: true
    {{- with include "forebay.arenaDirectory" . }}
    - name: forebay-arena
      mountPath: {{ . }}
    {{- end }}
    {{- with dig "directory" "" ($config.accessLog | default dict) }}
    - name: forebay-access-log
      mountPath: {{ . }}
    {{- end }}
    {{- range .Values.brokerLogMounts }}
    - name: {{ .name }}
      mountPath: {{ .mountPath }}
      readOnly: true
    {{- end }}
    {{- if .Values.certManager.enabled }}
    - name: forebay-certificate
      mountPath: /etc/forebay-certificate
      readOnly: true
    {{- end }}
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
{{- end }}

{{/*
A container without rights. Takes {runAsUser, runAsGroup}: null leaves a number out, for a platform that chooses it from a range of the
namespace (OpenShift).
*/}}
{{- define "forebay.securityContext" -}}
runAsNonRoot: true
{{- range $key := list "runAsUser" "runAsGroup" }}
{{- with get $ $key }}
{{ $key }}: {{ int64 . }}
{{- end }}
{{- end }}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* http or https: how the admin server is asked. The kubelet does not verify certificates and shows none. */}}
{{- define "forebay.adminScheme" -}}
{{- ternary "https" "http" (not (empty (dig "tls" dict (.Values.config.admin | default dict)))) }}
{{- end }}

{{- define "forebay.image" -}}
{{- include "forebay.imageOf" (list . .Values.image .Chart.AppVersion) }}
{{- end }}

{{/* A tag as text: `--set image.tag=1` gives a number, and numbers of seven digits would be written with an exponent. */}}
{{- define "forebay.tag" -}}
{{- if not (kindIs "invalid" .) }}
{{- kindIs "string" . | ternary . (int64 . | toString) }}
{{- end }}
{{- end }}

{{- define "forebay.volumes" -}}
- name: forebay-config
  configMap:
    name: {{ include "forebay.fullname" . }}
{{- if include "forebay.arenaDirectory" . }}
- name: forebay-arena
  emptyDir:
    medium: Memory
    sizeLimit: {{ include "forebay.mebibytes" (include "forebay.arenaBytes" .) }}
{{- end }}
{{- if dig "directory" "" (.Values.config.accessLog | default dict) }}
{{- if and .Values.accessLogVolume .Values.accessLogClaim.size }}
{{- fail "accessLogVolume and accessLogClaim.size are two places for one log; set one" }}
{{- else if .Values.accessLogVolume.persistentVolumeClaim }}
{{- fail "accessLogVolume: all brokers would share one claim and write to each other's files; set accessLogClaim.size, which gives each its own" }}
{{- else if not .Values.accessLogClaim.size }}
- name: forebay-access-log
  {{- if .Values.accessLogVolume }}
  {{- toYaml .Values.accessLogVolume | nindent 2 }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ include "forebay.mebibytes" (include "forebay.accessLogBytes" .) }}
  {{- end }}
{{- end }}
{{- end }}
{{- if .Values.certManager.enabled }}
- name: forebay-certificate
  secret:
    secretName: {{ include "forebay.certificateSecret" . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Items for a StatefulSet's `volumeClaimTemplates`: a claim of each broker for its access log, if there is a size. */}}
{{- define "forebay.volumeClaimTemplates" -}}
{{- if and .Values.accessLogClaim.size (dig "directory" "" (.Values.config.accessLog | default dict)) }}
{{- $needed := include "forebay.accessLogBytes" . }}
{{- if lt (include "forebay.bytes" .Values.accessLogClaim.size | int64) (int64 $needed) }}
{{- fail (printf "accessLogClaim.size (%s) is too little: accessLog.keepSize and two files more are %s" .Values.accessLogClaim.size (include "forebay.mebibytes" $needed)) }}
{{- end -}}
- metadata:
    name: forebay-access-log
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .Values.accessLogClaim.className }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ .Values.accessLogClaim.size }}
{{- end }}
{{- end }}
