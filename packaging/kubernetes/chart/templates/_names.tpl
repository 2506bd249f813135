{{/* Values that the schema would refuse without saying what to write. */}}
{{- define "xpu.check" -}}
{{- $k := .Values.kubernetes }}
{{- if not (regexMatch "^[1-9][0-9]{0,5}(MiB|GiB)$" $k.memoryUnit) }}
{{- fail (printf "kubernetes.memoryUnit=%s: write a whole number of MiB or GiB, such as 1GiB or 256MiB" $k.memoryUnit) }}
{{- end }}
{{- if and (not .Values.extender.enabled) (ne $k.placement "node") }}
{{- fail "extender.enabled=false: then nobody signs what pods are given: set kubernetes.placement=node, too, and each node chooses the cards" }}
{{- end }}
{{- if and .Values.extender.enabled (eq $k.placement "node") }}
{{- fail "kubernetes.placement=node: then each node chooses the cards, and the extender none: set extender.enabled=false, too" }}
{{- end }}
{{- if and .Values.scheduler.enabled (not .Values.extender.enabled) }}
{{- fail "scheduler.enabled=true: that scheduler asks the extender, which extender.enabled=false leaves out: set one of them otherwise" }}
{{- end }}
{{- end }}

{{- define "xpu.labels" -}}
app.kubernetes.io/name: xpu
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "xpu.image" -}}
{{ required "say where your registry has our image: --set image.repository=REGISTRY/xpu-kubernetes" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "xpu.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The resources that the scheduler sends to the extender. */}}
{{- define "xpu.managedResources" -}}
- name: yoyoworks.com/xpu-shares
- name: yoyoworks.com/xpu
- name: yoyoworks.com/xpu-mem
- name: yoyoworks.com/xpu-cores
{{- if has "aliyun.com/gpu" .Values.kubernetes.aliases }}
- name: aliyun.com/gpu-mem
- name: aliyun.com/gpu-core.percentage
{{- end }}
{{- if has "nvidia.com/mps" .Values.kubernetes.aliases }}
- name: nvidia.com/mps-memory
- name: nvidia.com/mps-core
{{- end }}
{{- end }}

{{- define "xpu.tls" -}}
caFile: /etc/xpu-kubernetes/tls/ca.crt
certFile: /etc/xpu-kubernetes/tls/tls.crt
keyFile: /etc/xpu-kubernetes/tls/tls.key
{{- end }}
