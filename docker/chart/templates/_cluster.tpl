{{- /* Ray, of a helper that has workers. Each template takes the dictionary of _party.tpl; `cluster` is the helper's `workers`. */ -}}

{{- /* The ports on which the machines of a Ray cluster reach each other: all that policies open. Below those that kernels give out. */ -}}
{{- define "maskedlark.ray-ports" -}}
gcs: 6379
nodeManager: 6380
objectManager: 6381
firstWorker: 10002
lastWorker: 10999
firstService: 20000 # of a worker, for its head: helper/executors/ray_fleet.py
lastService: 20999
{{- end }}

{{- define "maskedlark.worker-name" -}}
{{ .name }}-workers
{{- end }}

{{- define "maskedlark.worker-selector" -}}
app.kubernetes.io/name: maskedlark-worker
app.kubernetes.io/instance: {{ include "maskedlark.worker-name" . }}
{{- end }}

{{- /* The ports of every machine, as a NetworkPolicy has them. */ -}}
{{- define "maskedlark.ray-machine-ports" -}}
{{- $ports := fromYaml (include "maskedlark.ray-ports" .) -}}
- { port: {{ $ports.nodeManager }}, protocol: TCP }
- { port: {{ $ports.objectManager }}, protocol: TCP }
- { port: {{ $ports.firstWorker }}, endPort: {{ $ports.lastWorker }}, protocol: TCP }
{{- end }}

{{- /* What `ray start` is told at the head and at workers alike. */ -}}
{{- define "maskedlark.ray-arguments" -}}
{{- $ports := fromYaml (include "maskedlark.ray-ports" .) -}}
- --block
- --temp-dir=/ray
- --node-ip-address=$(POD_IP)
- --node-manager-port={{ $ports.nodeManager }}
- --object-manager-port={{ $ports.objectManager }}
- --min-worker-port={{ $ports.firstWorker }}
- --max-worker-port={{ $ports.lastWorker }}
- --object-store-memory={{ .cluster.objectStoreBytes | int64 }}
- --disable-usage-stats
{{- end }}

{{- /* Ray authenticates and encrypts: `lark-helper serve` refuses a cluster that does not. */ -}}
{{- define "maskedlark.ray-variables" -}}
- name: POD_IP
  valueFrom:
    fieldRef: { fieldPath: status.podIP }
- { name: RAY_USAGE_STATS_ENABLED, value: "0" }
- { name: RAY_ROTATION_MAX_BYTES, value: "16777216" } # else each log may grow to 3 GiB, and the pod is evicted
- { name: RAY_ROTATION_BACKUP_COUNT, value: "1" }
- { name: RAY_event_log_reporter_enabled, value: "0" } # its folder is closed to the helper at the head
- { name: RAY_worker_niceness, value: "0" } # else workers run at 15, and whatever runs beside them takes their caches
- { name: RAY_AUTH_MODE, value: token }
- { name: RAY_AUTH_TOKEN_PATH, value: /cluster/ray-token }
- { name: RAY_USE_TLS, value: "1" }
- { name: RAY_TLS_SERVER_CERT, value: /cluster/tls.crt }
- { name: RAY_TLS_SERVER_KEY, value: /cluster/tls.key }
- { name: RAY_TLS_CA_CERT, value: /cluster/ca.crt }
{{- end }}

{{- /* Ray's token, and this pod's own certificates for the address that it has now. The authorities' keys are in this container only.
The group may read what Ray's own user needs at the head; the certificate for workers is the helper's alone. */ -}}
{{- define "maskedlark.cluster-files" -}}
- name: cluster-files
  image: {{ include "maskedlark.image" . }}
  imagePullPolicy: {{ include "maskedlark.pull-policy" . }}
  securityContext:
    {{- include "maskedlark.hardened" . | nindent 4 }}
  resources:
    {{- toYaml .cluster.ray.resources | nindent 4 }}
  command: [sh, -euc]
  args:
    - |
      umask 077
      rm -rf /authority/* /cluster/* /workers/*
      cp -L /secrets/*ca.crt /secrets/*ca.key /authority/
      lark-helper cluster certificate --secrets /authority --out /cluster "$@"
      mv /cluster/workers/* /workers/
      rmdir /cluster/workers
      cp -L /secrets/ray-token /cluster/
      chmod 640 /cluster/*
      rm -rf /authority/*
    - cluster-files
    - --host
    - $(POD_IP)
    {{- range .hosts }}
    - --host
    - {{ . | quote }}
    {{- end }}
  env:
    - name: POD_IP
      valueFrom:
        fieldRef: { fieldPath: status.podIP }
  volumeMounts:
    - { name: secrets, mountPath: /secrets, readOnly: true }
    - { name: authority, mountPath: /authority }
    - { name: cluster, mountPath: /cluster }
    - { name: workers, mountPath: /workers }
{{- end }}

{{- /* The head of the Ray cluster, started before the helper, as a user who reads neither the helper's volume nor its certificate for workers. */ -}}
{{- define "maskedlark.ray-head" -}}
- name: ray
  restartPolicy: Always
  image: {{ include "maskedlark.image" . }}
  imagePullPolicy: {{ include "maskedlark.pull-policy" . }}
  securityContext:
    runAsUser: 10002
    {{- include "maskedlark.hardened" . | nindent 4 }}
  resources:
    {{- toYaml .cluster.ray.resources | nindent 4 }}
  command: [sh, -euc, 'umask 007; rm -rf /ray/*; exec ray start "$@"', ray]
  args:
    - --head
    - --port={{ (fromYaml (include "maskedlark.ray-ports" .)).gcs }}
    - --num-cpus=0
    - --include-dashboard=false
    {{- include "maskedlark.ray-arguments" . | nindent 4 }}
  env:
    {{- include "maskedlark.ray-variables" . | nindent 4 }}
    - { name: HOME, value: /ray }
    - { name: TMPDIR, value: /ray }
  ports:
    - { name: gcs, containerPort: {{ (fromYaml (include "maskedlark.ray-ports" .)).gcs }}, protocol: TCP }
  volumeMounts:
    - { name: cluster, mountPath: /cluster, readOnly: true }
    - { name: ray, mountPath: /ray }
    - { name: shm, mountPath: /dev/shm }
  {{- include "maskedlark.ray-probes" . | nindent 2 }}
{{- end }}

{{- define "maskedlark.ray-probes" -}}
{{- $port := (fromYaml (include "maskedlark.ray-ports" .)).nodeManager -}}
startupProbe:
  tcpSocket: { port: {{ $port }} }
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  tcpSocket: { port: {{ $port }} }
  periodSeconds: 10
  failureThreshold: 3
livenessProbe:
  tcpSocket: { port: {{ $port }} }
  periodSeconds: 20
  failureThreshold: 6
{{- end }}

{{- /* Ray's logs and spilled objects, which hold nothing of records, lie on the node's disk; what is secret lies in memory. */ -}}
{{- define "maskedlark.cluster-volumes" -}}
- name: secrets
  secret:
    secretName: {{ required "workers.secret: a Secret with what `lark-helper cluster init` makes" .cluster.secret }}
- name: authority
  emptyDir: { medium: Memory, sizeLimit: 1Mi }
- name: cluster
  emptyDir: { medium: Memory, sizeLimit: 1Mi }
- name: workers
  emptyDir: { medium: Memory, sizeLimit: 1Mi }
- name: ray
  emptyDir: { sizeLimit: {{ .cluster.disk }} }
- name: shm
  emptyDir: { medium: Memory, sizeLimit: {{ add (.cluster.objectStoreBytes | int64) 67108864 }} }
{{- end }}
