{{/*
The demo broker: names, addresses and server.properties. Reads Forebay's first listener, so that both sides of it agree.
Invariants: the client listener is bound to the loopback and advertises Forebay's port; inter-broker and controller traffic bypass Forebay.
*/}}
{{- define "forebay.broker.fullname" -}}
{{- include "forebay.fullname" . }}-broker
{{- end }}

{{- define "forebay.broker.headless" -}}
{{- include "forebay.fullname" . }}-brokers
{{- end }}

{{/* What follows a pod's name in its DNS name. */}}
{{- define "forebay.broker.domain" -}}
{{- printf "%s.%s.svc.%s" (include "forebay.broker.headless" .) .Release.Namespace .Values.broker.clusterDomain }}
{{- end }}

{{/* 16 hexadecimal characters in base64: a Kafka UUID that a re-install under the same name finds again in its volumes. */}}
{{- define "forebay.broker.clusterId" -}}
{{- .Values.broker.clusterId | default (printf "%s/%s" .Release.Namespace .Release.Name | sha256sum | trunc 16 | b64enc | trimSuffix "==") }}
{{- end }}

{{- define "forebay.broker.voters" -}}
{{- $voters := list }}
{{- range $node := until (int .Values.broker.replicas) }}
{{- $voters = append $voters (printf "%d@%s-%d.%s:9093" $node (include "forebay.broker.fullname" $) $node (include "forebay.broker.domain" $)) }}
{{- end }}
{{- join "," $voters }}
{{- end }}

{{/*
All of server.properties that is the same on every node; broker.sh adds node.id and advertised.listeners. Numbers go through toJson
and int64 here and elsewhere: Helm holds them as floats and would print 259200000 as 2.592e+08.
*/}}
{{- define "forebay.broker.properties" -}}
{{- $listener := index .Values.config.listeners 0 }}
{{- if not (has (include "forebay.host" $listener.upstream) (list "127.0.0.1" "localhost")) }}
{{- fail "broker.enabled: config.listeners[0].upstream must be on 127.0.0.1, where the broker beside Forebay listens" }}
{{- end }}
{{- if or $listener.tls (dig "upstreamTls" "enabled" false $listener) $listener.upstreamCredentials }}
{{- fail "broker.enabled: the demo broker speaks plain text; for TLS or SASL use a StatefulSet of your own (broker.enabled: false)" }}
{{- end }}
{{- $catchUp := $listener.catchUpUpstream }}
{{- if and $catchUp (not (has (include "forebay.host" $catchUp) (list "127.0.0.1" "localhost"))) }}
{{- fail "broker.enabled: config.listeners[0].catchUpUpstream must be on 127.0.0.1, where the broker beside Forebay listens" }}
{{- end }}
{{- if gt (len .Values.config.listeners) 1 }}
{{- fail "broker.enabled: the demo broker has one client listener, so config.listeners must have one entry" }}
{{- end }}
{{- $ports := list "9093" "9094" (include "forebay.port" $listener.listen) (include "forebay.port" $listener.upstream) (include "forebay.port" (dig "listen" "127.0.0.1:9190" (.Values.config.admin | default dict))) }}
{{- if $catchUp }}
{{- $ports = append $ports (include "forebay.port" $catchUp) }}
{{- end }}
{{- if ne (len $ports) (len (uniq $ports)) }}
{{- fail (printf "broker.enabled: two of the pod's listeners share a port: controller, inter-broker, listen, upstream, admin and catchUpUpstream are %s" (join ", " $ports)) }}
{{- end }}
{{- $replicas := int .Values.broker.replicas }}
{{- range $key, $value := .Values.broker.config }}
{{ $key }}={{ kindIs "string" $value | ternary $value (toJson $value) }}
{{- end }}
process.roles=broker,controller
controller.quorum.voters={{ include "forebay.broker.voters" . }}
controller.listener.names=CONTROLLER
inter.broker.listener.name=INTERNAL
listeners=CLIENT://127.0.0.1:{{ include "forebay.port" $listener.upstream }}{{ with $catchUp }},CATCHUP://127.0.0.1:{{ include "forebay.port" . }}{{ end }},INTERNAL://:9094,CONTROLLER://:9093
listener.security.protocol.map=CLIENT:PLAINTEXT,{{ with $catchUp }}CATCHUP:PLAINTEXT,{{ end }}INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=/var/lib/kafka/data
{{- if not (hasKey .Values.broker.config "offsets.topic.replication.factor") }}
offsets.topic.replication.factor={{ min 3 $replicas }}
{{- end }}
{{- if not (hasKey .Values.broker.config "transaction.state.log.replication.factor") }}
transaction.state.log.replication.factor={{ min 3 $replicas }}
{{- end }}
{{- if not (hasKey .Values.broker.config "transaction.state.log.min.isr") }}
transaction.state.log.min.isr={{ gt $replicas 2 | ternary 2 1 }}
{{- end }}
{{- end }}

{{- define "forebay.broker.script" -}}
{{- $listener := index .Values.config.listeners 0 -}}
# Completes server.properties with what differs from node to node, formats the storage once and becomes the broker.
set -eu
pod=$(hostname)
properties=/run/kafka/server.properties
{
  cat /etc/kafka/server.properties
  echo "node.id=${pod##*-}"
  echo "advertised.listeners=CLIENT://$pod.$DOMAIN:{{ include "forebay.port" $listener.listen }}{{ with $listener.catchUpUpstream }},CATCHUP://$pod.$DOMAIN:{{ include "forebay.port" $listener.listen }}{{ end }},INTERNAL://$pod.$DOMAIN:9094"
} > "$properties"
"$KAFKA_HOME/bin/kafka-storage.sh" format --ignore-formatted --cluster-id "$CLUSTER_ID" --config "$properties"
exec "$KAFKA_HOME/bin/kafka-server-start.sh" "$properties"
{{- end }}

{{/* To standard output alone: files would fill the pod's disk. */}}
{{- define "forebay.broker.log4j2" -}}
Configuration:
  status: warn
  Appenders:
    Console:
      name: STDOUT
      PatternLayout:
        pattern: "%d{ISO8601} %p %m (%c)%n"
  Loggers:
    Root:
      level: info
      AppenderRef:
        ref: STDOUT
{{- end }}

{{/* Rolls the brokers when what they read at start changes, and not with every version of the chart. */}}
{{- define "forebay.broker.checksum" -}}
{{- printf "%s\n%s\n%s" (include "forebay.broker.properties" .) (include "forebay.broker.script" .) (include "forebay.broker.log4j2" .) | sha256sum }}
{{- end }}
