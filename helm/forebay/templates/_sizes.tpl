{{/*
How much memory and disk the sidecar's volumes take, out of `config` and `resources`.
Invariant: the memory-backed volume, the bytes in flight and the processes (160Mi, and 48Mi for each beside one worker) fit into the container's memory limit; otherwise
the rendering stops, because the kernel would end the container, or the kubelet the pod with its broker, under load.
*/}}

{{/* Where the arena's volume is mounted; empty where Forebay needs none: it observes, or is off. The defaults are proxy/config.py's. */}}
{{- define "forebay.arenaDirectory" -}}
{{- $cache := .Values.config.cache | default dict }}
{{- if eq (dig "mode" "serve" $cache) "serve" }}
{{- dig "directory" "/dev/shm" $cache }}
{{- end }}
{{- end }}

{{/* Bytes of the cache: `cache.size`, else half of the memory limit, as Forebay derives it itself. */}}
{{- define "forebay.cacheBytes" -}}
{{- $size := dig "size" "" (.Values.config.cache | default dict) }}
{{- if eq (toString $size) "" }}
{{- div (include "forebay.bytes" .Values.resources.memory | int64) 2 }}
{{- else }}
{{- include "forebay.bytes" $size }}
{{- end }}
{{- end }}

{{/* Bytes of the arena's volume: Forebay uses at most 7/8 of the file system that it lies in. */}}
{{- define "forebay.arenaBytes" -}}
{{- $cache := include "forebay.cacheBytes" . | int64 }}
{{- $bytes := div (add (mul $cache 8) 6) 7 }}
{{- mul (div (add $bytes 1048575) 1048576) 1048576 }}
{{- end }}

{{/* Workers as Forebay counts them: `auto` is the whole processors of the CPU limit less one, and at least 1. */}}
{{- define "forebay.workers" -}}
{{- $workers := .Values.config.workers | default 1 }}
{{- if eq (toString $workers) "auto" }}
{{- $cpu := toString .Values.resources.cpu }}
{{- $whole := hasSuffix "m" $cpu | ternary (div (trimSuffix "m" $cpu | int) 1000) (float64 $cpu | int) }}
{{- min 31 (max 1 (sub $whole 1)) }}
{{- else }}
{{- int $workers }}
{{- end }}
{{- end }}

{{/* Bytes of the processes; from two workers on there are a keeper and a spare process, too. */}}
{{- define "forebay.processBytes" -}}
{{- $workers := include "forebay.workers" . | int64 }}
{{- add 167772160 (gt $workers 1 | ternary (mul (add $workers 1) 50331648) 0) }}
{{- end }}

{{/* The container's memory, checked against what it has to hold. */}}
{{- define "forebay.memory" -}}
{{- $limits := .Values.config.limits | default dict }}
{{- $limit := include "forebay.bytes" .Values.resources.memory | int64 }}
{{- $arena := 0 }}
{{- $mode := dig "mode" "serve" (.Values.config.cache | default dict) }}
{{- if eq $mode "serve" }}
{{- $arena = include "forebay.arenaBytes" . | int64 }}
{{- else if eq $mode "observe" }}
{{- $arena = div (include "forebay.cacheBytes" . | int64) 4 }}
{{- end }}
{{- $flight := add (include "forebay.bytes" (dig "requestMemory" "128MiB" $limits) | int64) (include "forebay.bytes" (dig "responseMemory" "256MiB" $limits) | int64) }}
{{- $processes := include "forebay.processBytes" . | int64 }}
{{- $needed := add $arena $flight $processes }}
{{- if gt $needed $limit }}
{{- fail (printf "resources.memory (%s) is too little: the arena's volume %s, requests and responses in flight %s and %s for the processes need %s" (toString .Values.resources.memory) (include "forebay.mebibytes" $arena) (include "forebay.mebibytes" $flight) (include "forebay.mebibytes" $processes) (include "forebay.mebibytes" $needed)) }}
{{- end }}
{{- .Values.resources.memory }}
{{- end }}

{{/* Bytes of the access log's own volume: what is kept, the file being written and the one being compressed. */}}
{{- define "forebay.accessLogBytes" -}}
{{- $log := .Values.config.accessLog | default dict }}
{{- add (include "forebay.bytes" (dig "keepSize" "4GiB" $log) | int64) (mul 2 (include "forebay.bytes" (dig "rotateSize" "256MiB" $log) | int64)) }}
{{- end }}

{{/*
For `terminationGracePeriodSeconds` of a pod: (list CONTEXT SECONDS), SECONDS being the broker's own shutdown. The kubelet stops native
sidecars after the main containers, within the same period.
*/}}
{{- define "forebay.terminationGracePeriodSeconds" -}}
{{- $context := index . 0 }}
{{- $grace := dig "gracePeriod" "25s" ($context.Values.config.shutdown | default dict) }}
{{- add (index . 1) (include "forebay.seconds" $grace | int64) 5 }}
{{- end }}
