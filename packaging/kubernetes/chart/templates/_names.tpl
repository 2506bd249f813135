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
