{{- /* Metrics of the parties: on each pod's loopback, or on a port of their own that `metrics.from` alone reaches. */ -}}

{{- define "maskedlark.metrics-variables" -}}
- { name: {{ .variable }}_METRICS_LISTEN, value: "{{ ternary "0.0.0.0" "127.0.0.1" .root.Values.metrics.enabled }}:9464" }
- { name: {{ .variable }}_METRICS_ACCESS, value: {{ ternary (ternary "tls" "plaintext" .root.Values.metrics.tls) "loopback" .root.Values.metrics.enabled }} }
{{- end }}

{{- /* What a probe runs. It talks to its own pod: the certificate's name says nothing there. */ -}}
{{- define "maskedlark.health" -}}
{{- if and .root.Values.metrics.enabled .root.Values.metrics.tls -}}
{{ "import ssl, urllib.request as r; r.urlopen('https://127.0.0.1:9464/healthz', timeout=5, context=ssl._create_unverified_context())" | quote }}
{{- else -}}
{{ "import urllib.request as r; r.urlopen('http://127.0.0.1:9464/healthz', timeout=5)" | quote }}
{{- end }}
{{- end }}

{{- define "maskedlark.metrics-ingress" -}}
{{- if .root.Values.metrics.enabled }}
- from:
    {{- include "maskedlark.peers" (dict "to" .root.Values.metrics.from "what" "metrics.from") | nindent 4 }}
  ports:
    - { port: metrics, protocol: TCP }
{{- end }}
{{- end }}

{{- /* A Service of its own: the party's may be open to the internet. */ -}}
{{- define "maskedlark.metrics-service" -}}
{{- $metrics := .root.Values.metrics }}
{{- if $metrics.enabled }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}-metrics
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "maskedlark.labels" . | nindent 4 }}
    app.kubernetes.io/component: {{ .party }}
spec:
  type: ClusterIP
  clusterIP: None
  selector:
    {{- include "maskedlark.selector" . | nindent 4 }}
  ports:
    - { name: metrics, port: 9464, targetPort: metrics, protocol: TCP }
{{- if $metrics.serviceMonitor.enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  {{- include "maskedlark.metadata" . | nindent 2 }}
    {{- with $metrics.serviceMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  jobLabel: app.kubernetes.io/component # the alerts' `job`
  selector:
    matchLabels:
      {{- include "maskedlark.selector" . | nindent 6 }}
      app.kubernetes.io/component: {{ .party }}
  endpoints:
    - port: metrics
      path: /metrics
      interval: {{ $metrics.serviceMonitor.interval }}
      {{- if $metrics.tls }}
      scheme: https
      {{- with $metrics.serviceMonitor.tlsConfig }}
      tlsConfig:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
