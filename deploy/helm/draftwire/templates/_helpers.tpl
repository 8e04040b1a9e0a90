{{/* The chart's name. */}}
{{- define "draftwire.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 43 | trimSuffix "-" }}
{{- end }}

{{/* The beginning of all names: the release's name, with the chart's unless it contains it. 43 characters leave room for what Kubernetes adds to a stateful set's. */}}
{{- define "draftwire.fullname" -}}
{{- $name := include "draftwire.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 43 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 43 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 43 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Labels of what belongs to the whole release. */}}
{{- define "draftwire.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "draftwire.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Labels of a component's pods, by which they are selected. Arguments: root, component. */}}
{{- define "draftwire.selectorLabels" -}}
app.kubernetes.io/name: {{ include "draftwire.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Name, namespace and labels of an object of a component. Arguments: root, component. */}}
{{- define "draftwire.metadata" -}}
name: {{ include "draftwire.fullname" .root }}-{{ .component }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "draftwire.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The name by which a component is called, and for which its certificate is issued. Arguments: root, component. */}}
{{- define "draftwire.host" -}}
{{ include "draftwire.fullname" .root }}-{{ .component }}.{{ .root.Release.Namespace }}.svc
{{- end }}

{{/* The host on which a container listens to be reached at its pod's address, of whichever family that is. */}}
{{- define "draftwire.everywhere" -}}
{{ ternary "[::]" "0.0.0.0" .Values.ipv6 }}
{{- end }}

{{/* An image. Arguments: root, name (draftwire-NAME), suffix of its tag. */}}
{{- define "draftwire.image" -}}
{{- with .root.Values.image }}
{{- with .registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- end -}}
draftwire-{{ .name }}:{{ default .root.Chart.AppVersion .root.Values.image.tag }}{{ .suffix }}
{{- end }}

{{/* The beginning of a pod's specification. Arguments: root, component. */}}
{{- define "draftwire.pod" -}}
{{- $values := index .root.Values .component -}}
serviceAccountName: {{ default (include "draftwire.fullname" .root) .root.Values.serviceAccount.name }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := $values.tolerations }}
{{- if or $values.gpus (and (eq .component "verifier") (eq .root.Values.drafter.placement "sidecar") .root.Values.drafter.gpus) }}
{{- $tolerations = append $tolerations (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- with $tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What every container is confined to. */}}
{{- define "draftwire.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Variables of settings, by the names of their flags; null leaves one out. Arguments: prefix, settings. */}}
{{- define "draftwire.variables" -}}
{{- range $name, $value := .settings }}
{{- if not (kindIs "invalid" $value) }}
- name: {{ $.prefix }}{{ $name | upper | replace "-" "_" }}
  {{- if kindIs "slice" $value }}
  value: {{ join "," $value | quote }}
  {{- else if kindIs "string" $value }}
  value: {{ $value | quote }}
  {{- else }}
  value: {{ toJson $value | quote }}{{/* a float would be printed with an exponent */}}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Variables of TLS and tokens. Arguments: root, component, prefix; place, the folder with the files' mounts. */}}
{{- define "draftwire.securityVariables" -}}
{{- $settings := dict }}
{{- if .root.Values.tls.enabled }}
{{- $settings = dict "tls-cert" "/tls/tls.crt" "tls-key" "/tls/tls.key" "tls-ca" "/tls/ca.crt" }}
{{- if and (eq .component "verifier") (ne .root.Values.drafter.placement "none") }}
{{- /* Drafters are called by their pods' addresses, for which there is no certificate. */}}
{{- $_ := set $settings "tls-server-name" (include "draftwire.host" (dict "root" .root "component" "drafter")) }}
{{- end }}
{{- else }}
{{- /* Plaintext among the pods, which the network policies isolate. */}}
{{- $settings = dict "insecure" true }}
{{- end }}
{{- if .root.Values.tokens.enabled }}
{{- $_ := set $settings "token-file" "/tokens/token" }}
{{- if ne .component "gateway" }}
{{- $_ := set $settings "accepted-tokens" "/tokens/accepted.toml" }}
{{- end }}
{{- end }}
{{- include "draftwire.variables" (dict "prefix" .prefix "settings" $settings) }}
{{- end }}

{{/* Mounts of the secrets with certificates and tokens. Arguments: root, volumes, the beginning of the volumes' names. */}}
{{- define "draftwire.securityMounts" -}}
{{- if .root.Values.tls.enabled }}
- {name: {{ .volumes }}tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- if .root.Values.tokens.enabled }}
- {name: {{ .volumes }}tokens, mountPath: /tokens, readOnly: true}
{{- end }}
{{- end }}

{{/* Volumes of the secrets with certificates and tokens. Arguments: root, component, volumes. */}}
{{- define "draftwire.securityVolumes" -}}
{{- if .root.Values.tls.enabled }}
- {name: {{ .volumes }}tls, secret: {secretName: {{ index .root.Values.tls.secrets .component }}}}
{{- end }}
{{- if .root.Values.tokens.enabled }}
- {name: {{ .volumes }}tokens, secret: {secretName: {{ index .root.Values.tokens.secrets .component }}}}
{{- end }}
{{- end }}

{{/* Number of verifiers that there can be, and thus their names. */}}
{{- define "draftwire.mostVerifiers" -}}
{{- with .Values.verifier }}
{{- if .autoscaling.enabled }}{{ .autoscaling.maxReplicas }}{{ else }}{{ .replicas }}{{ end }}
{{- end }}
{{- end }}

{{/* The port of the gateway's service. */}}
{{- define "draftwire.gatewayPort" -}}
{{- default (ternary 443 80 .Values.tls.enabled) .Values.gateway.service.port }}
{{- end }}

{{/* The components with pods of their own, as a JSON array. */}}
{{- define "draftwire.components" -}}
{{- $components := list "verifier" }}
{{- if eq .Values.drafter.placement "separate" }}{{ $components = append $components "drafter" }}{{ end }}
{{- if .Values.gateway.enabled }}{{ $components = append $components "gateway" }}{{ end }}
{{- toJson $components }}
{{- end }}
