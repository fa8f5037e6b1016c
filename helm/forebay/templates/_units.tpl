{{/*
What the chart reads out of `config`: ports, bytes, seconds. Knows the units that proxy/config_units.py knows, no Kubernetes object.
Invariant: a size or duration that cannot be read stops the rendering; nothing is guessed.
*/}}

{{/* HOST:PORT, [HOST]:PORT or :PORT → PORT */}}
{{- define "forebay.port" -}}
{{- $port := splitList ":" . | last }}
{{- if not (regexMatch ":[1-9][0-9]*$" .) }}
{{- fail (printf "%q names no fixed port; write HOST:PORT or :PORT" .) }}
{{- end }}
{{- $port }}
{{- end }}

{{/* HOST:PORT → HOST, empty for all interfaces */}}
{{- define "forebay.host" -}}
{{- regexReplaceAll ":[0-9]+$" . "" }}
{{- end }}

{{/* 1GiB, 512MiB, 2Gi, 1GB or a plain count → bytes */}}
{{- define "forebay.bytes" -}}
{{- $text := kindIs "string" . | ternary (toString .) (int64 . | toString) }}
{{- $number := regexFind "^[0-9]+(\\.[0-9]+)?" $text }}
{{- $unit := regexReplaceAll "^[0-9.]+ *" $text "" | lower | trimSuffix "b" }}
{{- $factors := dict "" 1 "k" 1000 "m" 1000000 "g" 1000000000 "t" 1000000000000 "ki" 1024 "mi" 1048576 "gi" 1073741824 "ti" 1099511627776 }}
{{- if or (not $number) (not (hasKey $factors $unit)) }}
{{- fail (printf "%q is not a size; write for example 512MiB or 2Gi" $text) }}
{{- end }}
{{- mulf $number (get $factors $unit) | int64 }}
{{- end }}

{{/* 25s, 1m30s, 250ms or 0 → whole seconds, rounded up */}}
{{- define "forebay.seconds" -}}
{{- $text := toString . }}
{{- if not (regexMatch "^(0|([0-9]+(\\.[0-9]+)?(h|m|s|ms|us|µs))+)$" $text) }}
{{- fail (printf "%q is not a duration; write for example 250ms, 30s or 1h30m" $text) }}
{{- end }}
{{- $factors := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 "us" 0.000001 "µs" 0.000001 }}
{{- $total := 0.0 }}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(ms|us|µs|h|m|s)" $text -1 }}
{{- $total = addf $total (mulf (regexFind "^[0-9.]+" .) (get $factors (regexFind "[a-zµ]+$" .))) }}
{{- end }}
{{- ceil $total | int64 }}
{{- end }}

{{/* bytes → whole Mi, rounded up, as Kubernetes writes them */}}
{{- define "forebay.mebibytes" -}}
{{- div (add (int64 .) 1048575) 1048576 }}Mi
{{- end }}

{{/* [9092, 9095] → 1-9091,9093-9094,9096-65535: all ports but these, as ranges */}}
{{- define "forebay.portsBeside" -}}
{{- $texts := list }}
{{- range . }}
{{- $texts = append $texts (printf "%05d" (int .)) }}
{{- end }}
{{- $ranges := list }}
{{- $next := 1 }}
{{- range append (sortAlpha $texts) "65536" }}
{{- $port := trimPrefix "0" . | trimPrefix "0" | trimPrefix "0" | trimPrefix "0" | int }}
{{- if gt $port $next }}
{{- $ranges = append $ranges (printf "%d-%d" $next (sub $port 1)) }}
{{- end }}
{{- $next = add1 $port | int }}
{{- end }}
{{- join "," $ranges }}
{{- end }}
