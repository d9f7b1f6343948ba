{{- /* What the parties have in common. Each template takes a dictionary: root, name, party (helper or adserver), own (its values),
values (where these stand in the release's), objects (its object storage, or empty) and, of a helper with workers, cluster. */ -}}

{{- define "maskedlark.labels" -}}
app.kubernetes.io/name: maskedlark-{{ .party }}
app.kubernetes.io/instance: {{ .name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: maskedlark
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "maskedlark.selector" -}}
app.kubernetes.io/name: maskedlark-{{ .party }}
app.kubernetes.io/instance: {{ .name }}
{{- end }}

{{- define "maskedlark.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "maskedlark.labels" . | nindent 2 }}
{{- end }}

{{- define "maskedlark.image" -}}
{{- $tag := .root.Values.image.tag | default .root.Chart.AppVersion -}}
{{ .root.Values.image.registry }}/{{ .image | default .party }}{{ ternary "@" ":" (hasPrefix "sha256:" $tag) }}{{ $tag }}
{{- end }}

{{- /* A tag may come to name another image, a digest not. */ -}}
{{- define "maskedlark.pull-policy" -}}
{{ .root.Values.image.pullPolicy | default (ternary "IfNotPresent" "Always" (hasPrefix "sha256:" .root.Values.image.tag)) }}
{{- end }}

{{- define "maskedlark.trusted" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "maskedlark.metadata" . | nindent 2 }}
data:
  trusted.crt: {{ .own.trusted | quote }}
  {{- with ((.own.dashboard).oidc).ca }}
  provider.crt: {{ . | quote }}
  {{- end }}
  {{- with .own.trustedNames }}
  trusted.names: {{ . | quote }}
  {{- end }}
{{- end }}

{{- define "maskedlark.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "maskedlark.metadata" . | nindent 2 }}
  {{- with .own.service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .own.service.type }}
  {{- if ne .own.service.type "ClusterIP" }}
  externalTrafficPolicy: {{ .own.service.externalTrafficPolicy }}
  {{- end }}
  selector:
    {{- include "maskedlark.selector" . | nindent 4 }}
  ports:
    {{- range $port, $number := .ports }}
    - name: {{ $port }}
      port: {{ $number }}
      targetPort: {{ $port }}
      protocol: TCP
    {{- end }}
{{- end }}

{{- define "maskedlark.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "maskedlark.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .own.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "maskedlark.selector" . | nindent 6 }}
{{- end }}

{{- define "maskedlark.hardened" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* What every pod is. OnRootMismatch: the group is given to an empty volume only, for it would open the keys to the group. */ -}}
{{- define "maskedlark.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  {{- if .own.storage }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Replicas go to different machines where they can. */ -}}
{{- define "maskedlark.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "maskedlark.selector" . | nindent 8 }}
{{- end }}

{{- /* The peers of a rule, which no rule goes without: one without peers is open to every address. */ -}}
{{- define "maskedlark.peers" -}}
{{- if not .to }}
{{- fail (printf "%s: expected at least one peer of a NetworkPolicy (podSelector, namespaceSelector or ipBlock), got none: the port would be open to every address" .what) }}
{{- end }}
{{- toYaml .to }}
{{- end }}

{{- define "maskedlark.egress-to-names" -}}
- to:
    {{- include "maskedlark.peers" (dict "to" .root.Values.dns "what" "dns") | nindent 4 }}
  ports:
    - { port: 53, protocol: UDP }
    - { port: 53, protocol: TCP }
{{- end }}

{{- /* What a party may call: names, and the database, the object storage, what keeps its keys and the provider of sign-ins where there is one. */ -}}
{{- define "maskedlark.egress" -}}
{{- include "maskedlark.egress-to-names" . }}
{{- with .own.database }}
{{- if .secret }}
- to:
    {{- include "maskedlark.peers" (dict "to" .to "what" (printf "%s.database.to" $.values)) | nindent 4 }}
  ports:
    - { port: {{ .port | default 5432 }}, protocol: TCP }
{{- end }}
{{- end }}
{{- with .objects }}
{{- if .url }}
- to:
    {{- include "maskedlark.peers" (dict "to" .to "what" (printf "%s.%s.to" $.values (ternary "segments" "reportObjects" (eq $.party "helper")))) | nindent 4 }}
  ports:
    - { port: {{ .port | default 443 }}, protocol: TCP }
{{- end }}
{{- end }}
{{- with .own.keeper }}
{{- if .to }}
- to:
    {{- toYaml .to | nindent 4 }}
  ports:
    - { port: {{ .port | default 443 }}, protocol: TCP }
{{- end }}
{{- end }}
{{- if and (.own.dashboard).enabled .own.dashboard.oidc.issuer }}
{{- with .own.dashboard.oidc }}
- to:
    {{- include "maskedlark.peers" (dict "to" .to "what" "adserver.dashboard.oidc.to") | nindent 4 }}
  ports:
    - { port: {{ .port | default 443 }}, protocol: TCP }
{{- end }}
{{- end }}
{{- end }}

{{- /* One process and its volume. Restarts are safe at any moment: nothing is charged twice, and nothing acknowledged is lost.
The volume's own folder belongs to root and the group, so the party's files are in a folder of its own, which nobody else may write to. */ -}}
{{- define "maskedlark.party" -}}
{{- $variable := upper .party -}}
{{- $private := fromYaml (include "maskedlark.private" .) -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  {{- include "maskedlark.metadata" . | nindent 2 }}
spec:
  replicas: 1
  serviceName: {{ .name }}
  selector:
    matchLabels:
      {{- include "maskedlark.selector" . | nindent 6 }}
  persistentVolumeClaimRetentionPolicy: { whenDeleted: Retain, whenScaled: Retain }
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .own.storage.className }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .own.storage.size }}
  template:
    metadata:
      labels:
        {{- include "maskedlark.labels" . | nindent 8 }}
    spec:
      {{- include "maskedlark.pod" . | nindent 6 }}
      {{- if .cluster }}
      shareProcessNamespace: true # the helper finds Ray's daemon of this machine among its processes
      {{- end }}
      terminationGracePeriodSeconds: 45
      initContainers:
        - name: keys
          image: {{ include "maskedlark.image" . }}
          imagePullPolicy: {{ include "maskedlark.pull-policy" . }}
          securityContext:
            {{- include "maskedlark.hardened" . | nindent 12 }}
          resources:
            {{- toYaml .own.resources | nindent 12 }}
          command: [sh, -euc]
          args:
            - |
              umask 077
              data="${{ $variable }}_DATA"
              {{- if $private }}
              cp -fL /given/*/* /private/
              {{- end }}
              if [ ! -e "$data" ]; then
                {{- include "maskedlark.first-keys" . | nindent 16 }}
              fi
              cat "$data/tls.crt"; if [ -e "$data/keygen.txt" ]; then grep ^fingerprint "$data/keygen.txt" || true; fi
            - keys
            {{- range .keygen }}
            - {{ . | quote }}
            {{- end }}
          env:
            - { name: {{ $variable }}_DATA, value: /data/{{ .party }} }
            {{- range $name, $value := .own.env }}
            - { name: {{ $name }}, value: {{ $value | quote }} }
            {{- end }}
            {{- with include "maskedlark.keeper-variables" . }}{{ . | nindent 12 }}{{ end }}
          {{- with (.own.keeper).secret }}
          envFrom:
            - secretRef: { name: {{ . }} }
          {{- end }}
          volumeMounts:
            - { name: data, mountPath: /data }
            - { name: tmp, mountPath: /tmp }
            {{- if .own.keysSecret }}
            - { name: keys, mountPath: /keys, readOnly: true }
            {{- end }}
            {{- range $file, $_ := $private }}
            - { name: given-{{ $file }}, mountPath: /given/{{ $file }}, readOnly: true }
            {{- end }}
            {{- if $private }}
            - { name: private, mountPath: /private }
            {{- end }}
        {{- if .cluster }}
        {{- include "maskedlark.cluster-files" . | nindent 8 }}
        {{- include "maskedlark.ray-head" . | nindent 8 }}
        {{- end }}
      containers:
        - name: {{ .party }}
          image: {{ include "maskedlark.image" . }}
          imagePullPolicy: {{ include "maskedlark.pull-policy" . }}
          args: [serve]
          securityContext:
            {{- include "maskedlark.hardened" . | nindent 12 }}
          resources:
            {{- toYaml .own.resources | nindent 12 }}
          env:
            - { name: {{ $variable }}_DATA, value: /data/{{ .party }} }
            - { name: {{ $variable }}_TLS_CERT, value: /data/{{ .party }}/tls.crt }
            - { name: {{ $variable }}_TLS_KEY, value: /data/{{ .party }}/tls.key }
            - { name: {{ $variable }}_TLS_CA, value: /trusted/trusted.crt }
            {{- include "maskedlark.metrics-variables" (dict "root" .root "variable" $variable) | nindent 12 }}
            {{- with .own.database.secret }}
            - name: {{ $variable }}_DATABASE
              valueFrom:
                secretKeyRef:
                  name: {{ . }}
                  key: {{ $.own.database.key | default "url" }}
            {{- end }}
            {{- if .cluster }}
            {{- include "maskedlark.ray-variables" . | nindent 12 }}
            - { name: HELPER_RAY, value: "$(POD_IP):{{ (fromYaml (include "maskedlark.ray-ports" .)).gcs }}" }
            - { name: HELPER_RAY_WORKER_TLS, value: /workers }
            - { name: HELPER_RAY_WORKER_BYTES, value: {{ .cluster.workerBytes | int64 | quote }} }
            - { name: HELPER_RAY_OPEN_REPORTS, value: {{ ternary "1" "0" .cluster.openReports | quote }} }
            {{- end }}
            {{- range $name, $value := merge (deepCopy .own.env) .variables (dict (printf "%s_LOG_FORMAT" $variable) "json") }}
            - name: {{ $name }}
              value: {{ $value | quote }}
            {{- end }}
            {{- with include "maskedlark.keeper-variables" . }}{{ . | nindent 12 }}{{ end }}
          {{- with compact (list .objects.secret (.own.keeper).secret) }}
          envFrom:
            {{- range . }}
            - secretRef: { name: {{ . }} }
            {{- end }}
          {{- end }}
          ports:
            {{- range $port, $number := .ports }}
            - { name: {{ $port }}, containerPort: {{ $number }}, protocol: TCP }
            {{- end }}
            {{- if .root.Values.metrics.enabled }}
            - { name: metrics, containerPort: 9464, protocol: TCP }
            {{- end }}
          volumeMounts:
            - { name: data, mountPath: /data }
            - { name: trusted, mountPath: /trusted, readOnly: true }
            - { name: tmp, mountPath: /tmp }
            {{- if $private }}
            - { name: private, mountPath: /private, readOnly: true }
            {{- end }}
            {{- if .cluster }}
            - { name: cluster, mountPath: /cluster, readOnly: true }
            - { name: workers, mountPath: /workers, readOnly: true }
            - { name: ray, mountPath: /ray }
            {{- end }}
          # Health says `starting` while loops are compiled.
          startupProbe:
            exec:
              command: [python, -c, {{ include "maskedlark.health" . }}]
            periodSeconds: 10
            timeoutSeconds: 10
            failureThreshold: 60
          readinessProbe:
            exec:
              command: [python, -c, {{ include "maskedlark.health" . }}]
            periodSeconds: 10
            timeoutSeconds: 10
            failureThreshold: 3
          # Not health: a database that is away is no reason to start anew.
          livenessProbe:
            tcpSocket:
              port: {{ .alive }}
            periodSeconds: 20
            failureThreshold: 6
      volumes:
        - name: trusted
          configMap:
            name: {{ .name }}
        - name: tmp
          emptyDir: { medium: Memory, sizeLimit: 256Mi }
        {{- with .own.keysSecret }}
        - name: keys
          secret:
            secretName: {{ . }}
        {{- end }}
        {{- range $file, $secret := $private }}
        - name: given-{{ $file }}
          secret:
            secretName: {{ $secret }}
            items: [{ key: {{ $file }}, path: {{ $file }} }]
        {{- end }}
        {{- if $private }}
        - name: private
          emptyDir: { medium: Memory, sizeLimit: 1Mi }
        {{- end }}
        {{- if .cluster }}
        {{- include "maskedlark.cluster-volumes" . | nindent 8 }}
        {{- end }}
{{- end }}
