{{- define "ration.name" -}}
{{- printf "%s-kubelet-plugin" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "ration.labels" -}}
app.kubernetes.io/name: ration
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: kubelet-plugin
{{- end -}}
