{{/* What verifier and drafter have in common: a model, its hardware, gRPC and metrics. */}}

{{/*
A container of a verifier or drafter. Arguments: root, component, settings by flag; listen, the host that it listens on; port,
metricsPort, volumes, the beginning of the names of its own volumes and ports; variables before the settings.
*/}}
{{- define "draftwire.serviceContainer" -}}
{{- $values := index .root.Values .component -}}
{{- $gpus := int $values.gpus -}}
{{- $everywhere := include "draftwire.everywhere" .root -}}
{{- $settings := merge (deepCopy $values.settings) .settings (dict "metrics-listen" (printf "%s:%v" $everywhere .metricsPort)) -}}
{{- if .root.Values.ipv6 }}
{{- $settings = merge $settings (dict "listen" (printf "%s:%v" $everywhere .port)) }}
{{- end -}}
{{- if eq (dig "engine" "" $settings) "vllm" }}
{{- /* vLLM finds the GPUs itself. */}}
{{- if gt $gpus 1 }}
{{- $_ := set $settings "engine-arguments" (printf "--tensor-parallel-size=%d %s" $gpus (dig "engine-arguments" "" $settings) | trim) }}
{{- end }}
{{- else if $gpus }}
{{- $_ := set $settings "device" "cuda" }}
{{- if gt $gpus 1 }}{{- $_ := set $settings "tensor-parallel" $gpus }}{{ end }}
{{- end -}}
- name: {{ .component }}
  image: {{ include "draftwire.image" (dict "root" .root "name" .component "suffix" (ternary "-cuda" "-cpu" (gt $gpus 0))) }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  env:
    {{- with .variables }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- include "draftwire.variables" (dict "prefix" "DRAFTWIRE_" "settings" $settings) | trim | nindent 4 }}
    {{- include "draftwire.securityVariables" (dict "root" .root "component" .component "prefix" "DRAFTWIRE_") | trim | nindent 4 }}
    {{- with .root.Values.models }}
    {{- if ne .source "hub" }}
    - {name: HF_HUB_OFFLINE, value: "1"}
    {{- else if .hub.tokenSecret }}
    - name: HF_TOKEN
      valueFrom: {secretKeyRef: {name: {{ .hub.tokenSecret }}, key: {{ .hub.tokenKey }}}}
    {{- end }}
    {{- end }}
  ports:
    - {name: {{ .volumes | default "grpc" | trimSuffix "-" }}, containerPort: {{ .port }}}
    - {name: {{ .volumes }}metrics, containerPort: {{ .metricsPort }}}
  {{- if not .volumes }}
  {{- if .root.Values.tls.enabled }}
  {{- /* Kubernetes' own gRPC probes do not speak TLS. */}}
  {{- $probe := dict "exec" (dict "command" (list "draftwire" "probe" "--tls-server-name" (include "draftwire.host" .))) "timeoutSeconds" 10 }}
  startupProbe: {{- merge (dict "periodSeconds" 5 "failureThreshold" 360) $probe | toYaml | nindent 4 }}
  readinessProbe: {{- merge (dict "periodSeconds" 10 "failureThreshold" 2) $probe | toYaml | nindent 4 }}
  livenessProbe: {{- merge (dict "periodSeconds" 20 "failureThreshold" 3) $probe | toYaml | nindent 4 }}
  {{- else }}
  # Loading a model, and downloading it the first time, may take half an hour.
  startupProbe: {grpc: {port: {{ .port }}}, periodSeconds: 5, failureThreshold: 360, timeoutSeconds: 5}
  readinessProbe: {grpc: {port: {{ .port }}}, periodSeconds: 5, failureThreshold: 2, timeoutSeconds: 5}
  livenessProbe: {grpc: {port: {{ .port }}}, periodSeconds: 20, failureThreshold: 3, timeoutSeconds: 10}
  {{- end }}
  {{- end }}
  {{- $resources := deepCopy $values.resources }}
  {{- if $gpus }}
  {{- $resources = mergeOverwrite $resources (dict "limits" (dict "nvidia.com/gpu" $gpus)) }}
  {{- end }}
  resources: {{- toYaml $resources | nindent 4 }}
  {{- include "draftwire.containerSecurity" . | nindent 2 }}
  volumeMounts:
    - {name: {{ .volumes }}tmp, mountPath: /tmp}
    - {name: huggingface, mountPath: /var/cache/huggingface}
    {{- if $gpus }}
    {{- /* Compiled kernels outlive the pod where there is a claim. */}}
    {{- if eq .root.Values.models.source "hub" }}
    - {name: huggingface, mountPath: /var/cache/triton, subPath: triton}
    {{- else }}
    - {name: {{ .volumes }}triton, mountPath: /var/cache/triton}
    {{- end }}
    {{- end }}
    {{- if gt $gpus 1 }}
    - {name: {{ .volumes }}memory, mountPath: /dev/shm}
    {{- end }}
    {{- if ne .root.Values.models.source "hub" }}
    - {name: models, mountPath: /models, readOnly: true}
    {{- end }}
    {{- with include "draftwire.securityMounts" . }}{{ . | trim | nindent 4 }}{{ end }}
{{- end }}

{{/* The volumes of such a container alone. Arguments: root, component, volumes. */}}
{{- define "draftwire.serviceVolumes" -}}
{{- $gpus := int (index .root.Values .component).gpus -}}
- name: {{ .volumes }}tmp
  emptyDir: {sizeLimit: 256Mi}
{{- if and $gpus (ne .root.Values.models.source "hub") }}
- name: {{ .volumes }}triton
  emptyDir: {sizeLimit: 1Gi}
{{- end }}
{{- if gt $gpus 1 }}
- name: {{ .volumes }}memory
  emptyDir: {medium: Memory}
{{- end }}
{{- include "draftwire.securityVolumes" . }}
{{- end }}

{{/* The volumes that the containers of a pod share: the models, and the hub's cache if it is not a claim. */}}
{{- define "draftwire.modelVolumes" -}}
{{- with .Values.models }}
{{- if ne .source "hub" }}
- name: huggingface
  emptyDir: {sizeLimit: 256Mi}
{{- end }}
{{- if eq .source "claim" }}
- name: models
  persistentVolumeClaim: {claimName: {{ required "models.claim is required if models.source is claim" .claim }}, readOnly: true}
{{- else if eq .source "image" }}
- name: models
  {{- if .image.copy }}
  emptyDir: {sizeLimit: {{ .image.size }}}
  {{- else }}
  image: {reference: {{ include "draftwire.modelsImage" $ }}, pullPolicy: {{ $.Values.image.pullPolicy }}}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "draftwire.modelsImage" -}}
{{- default (include "draftwire.image" (dict "root" . "name" "models" "suffix" "")) .Values.models.image.reference }}
{{- end }}

{{/* The container that copies the models from their image. */}}
{{- define "draftwire.modelsContainer" -}}
{{- if and (eq .Values.models.source "image") .Values.models.image.copy }}
initContainers:
  - name: models
    image: {{ include "draftwire.modelsImage" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 64Mi}}
    {{- include "draftwire.containerSecurity" . | nindent 4 }}
    volumeMounts: [{name: models, mountPath: /models}]
{{- end }}
{{- end }}

{{/* The claims of a stateful set for what is downloaded. */}}
{{- define "draftwire.claims" -}}
{{- if eq .Values.models.source "hub" }}
volumeClaimTemplates:
  - apiVersion: v1
    kind: PersistentVolumeClaim
    metadata: {name: huggingface}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .Values.models.hub.storageClass }}
      storageClassName: {{ . }}
      {{- end }}
      resources: {requests: {storage: {{ .Values.models.hub.cacheSize }}}}
{{- end }}
{{- end }}
