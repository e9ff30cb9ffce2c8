package chart

import (
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admission "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"

	"ration/check/expect"
)

// A claim is held to the sum of its requests, by the API server's own CEL.
func TestClaimsPolicy(t *testing.T) {
	one := func(memory string, more map[string]any) map[string]any {
		out := map[string]any{"deviceClassName": "gpu.ration", "capacity": map[string]any{"requests": map[string]any{"memory": memory}}}
		for key, value := range more {
			out[key] = value
		}
		return map[string]any{"name": "r", "exactly": out}
	}
	exactly := func(fields map[string]any) map[string]any { return map[string]any{"name": "r", "exactly": fields} }
	compute := func(percent string) map[string]any {
		return exactly(map[string]any{"deviceClassName": "gpu.ration",
			"capacity": map[string]any{"requests": map[string]any{"memory": "1Gi", "compute": percent}}})
	}
	first := func(of ...map[string]any) map[string]any {
		var ways []any
		for _, r := range of {
			ways = append(ways, r["exactly"])
		}
		return map[string]any{"name": "r", "firstAvailable": ways}
	}
	policies := map[string]any{"policies": map[string]any{"maxMemory": "12Gi", "maxCompute": 90}}
	for name, tt := range map[string]struct {
		requests []any
		want     string
	}{
		"nothing":             {nil, ""},
		"as much as it may":   {[]any{one("12Gi", nil)}, ""},
		"three for as much":   {[]any{one("4Gi", nil), one("4Gi", nil), one("4Gi", nil)}, ""},
		"a byte more":         {[]any{one("12884901889", nil)}, "more than 12Gi"},
		"three requests":      {[]any{one("12Gi", nil), one("12Gi", nil), one("12Gi", nil)}, "more than 12Gi"},
		"two devices":         {[]any{one("8Gi", map[string]any{"count": int64(2)})}, "more than 12Gi"},
		"all devices":         {[]any{one("1Gi", map[string]any{"allocationMode": "All"})}, "how many devices"},
		"small ones":          {[]any{one("1", map[string]any{"count": int64(49)})}, "more than 12Gi"},
		"the largest way":     {[]any{first(one("1Gi", nil), one("9Gi", nil)), one("4Gi", nil)}, "more than 12Gi"},
		"one of several ways": {[]any{first(one("8Gi", nil), one("6Gi", nil)), one("4Gi", nil)}, ""},
		"a fraction":          {[]any{one("1500m", nil)}, "more than 12Gi"},
		"without an amount":   {[]any{exactly(map[string]any{"deviceClassName": "gpu.ration"})}, "how much memory"},
		"admin access":        {[]any{one("1Gi", map[string]any{"adminAccess": true})}, "admin access"},
		"compute":             {[]any{compute("45"), compute("45")}, ""},
		"too much compute":    {[]any{compute("45"), compute("46")}, "more than 90 per cent"},
		"another class":       {[]any{exactly(map[string]any{"deviceClassName": "other", "allocationMode": "All"})}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			spec := map[string]any{"devices": map[string]any{"requests": tt.requests}}
			for kind, object := range map[string]any{"ResourceClaim": map[string]any{"spec": spec}, "ResourceClaimTemplate": map[string]any{"spec": map[string]any{"spec": spec}}} {
				got := refusal(t, policies, kind, object)
				expect.True(t, (got == "") == (tt.want == "") && strings.Contains(got, tt.want), kind, "is refused:", got, "want", tt.want)
			}
		})
	}
}

// A request without an amount counts as defaultMemory, as the devices say. The scheduler's own claims for extended
// resources have none.
func TestClaimsPolicyDefault(t *testing.T) {
	exactly := func(fields map[string]any) map[string]any {
		fields["deviceClassName"] = "gpu.ration"
		return map[string]any{"name": "container-0-request-0", "exactly": fields}
	}
	for name, tt := range map[string]struct {
		unspecified string
		requests    []any
		want        string
	}{
		"one":               {"8Gi", []any{exactly(map[string]any{"allocationMode": "ExactCount", "count": int64(1)})}, ""},
		"two":               {"8Gi", []any{exactly(map[string]any{"allocationMode": "ExactCount", "count": int64(2)})}, "more than 12Gi"},
		"of two containers": {"8Gi", []any{exactly(map[string]any{}), exactly(map[string]any{})}, "more than 12Gi"},
		"beside an amount":  {"8Gi", []any{exactly(map[string]any{}), exactly(map[string]any{"capacity": map[string]any{"requests": map[string]any{"memory": "4Gi"}}})}, ""},
		"small ones":        {"1Mi", []any{exactly(map[string]any{"count": int64(49)})}, "more than 12Gi"},
		"large":             {"13Gi", []any{exactly(map[string]any{})}, "more than 12Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			values := map[string]any{"defaultMemory": tt.unspecified, "policies": map[string]any{"maxMemory": "12Gi"}, "deviceClass": map[string]any{"extendedResourceName": "nvidia.com/gpu"}}
			got := refusal(t, values, "ResourceClaim", map[string]any{"spec": map[string]any{"devices": map[string]any{"requests": tt.requests}}})
			expect.True(t, (got == "") == (tt.want == "") && strings.Contains(got, tt.want), "is refused:", got, "want", tt.want)
		})
	}
	_, err := Render(folder, map[string]any{"policies": map[string]any{"maxMemory": "12Gi"}, "deviceClass": map[string]any{"extendedResourceName": "nvidia.com/gpu"}})
	expect.True(t, err != nil && strings.Contains(err.Error(), "need defaultMemory"), err)
}

// A claim cannot ask for high priority, unless the operator allows it.
func TestPriorityPolicy(t *testing.T) {
	for _, tt := range []struct {
		highest, driver, parameters string
		want                        string
	}{
		{"normal", "gpu.ration", "high", "cannot ask for high priority"},
		{"normal", "gpu.ration", "low", ""},
		{"normal", "gpu.ration", "", ""},
		{"normal", "other", "high", ""},
		{"high", "gpu.ration", "high", ""},
	} {
		parameters := settings()
		if tt.parameters != "" {
			parameters["priority"] = tt.parameters
		}
		configs := []any{map[string]any{"opaque": map[string]any{"driver": "gpu.ration", "parameters": settings()}},
			map[string]any{"opaque": map[string]any{"driver": tt.driver, "parameters": parameters}}}
		spec := map[string]any{"devices": map[string]any{"config": configs}}
		values := map[string]any{"policies": map[string]any{"maxPriority": tt.highest}}
		for kind, object := range map[string]any{"ResourceClaim": map[string]any{"spec": spec}, "ResourceClaimTemplate": map[string]any{"spec": map[string]any{"spec": spec}}} {
			got := refusal(t, values, kind, object)
			expect.True(t, (got == "") == (tt.want == "") && strings.Contains(got, tt.want), tt, kind, "is refused:", got)
		}
	}
}

// The finalizer of a claim stays while the claim is allocated, except for administrators.
func TestKeptPolicy(t *testing.T) {
	const finalizer = "resource.kubernetes.io/delete-protection"
	claim := func(driver string, finalizers ...any) map[string]any {
		status := map[string]any{}
		if driver != "" {
			status["allocation"] = map[string]any{"devices": map[string]any{"results": []any{map[string]any{"driver": driver}}}}
		}
		metadata := map[string]any{"name": "c"}
		if len(finalizers) > 0 {
			metadata["finalizers"] = finalizers
		}
		return map[string]any{"metadata": metadata, "status": status}
	}
	var kept *admission.ValidatingAdmissionPolicy
	for _, p := range find[*admission.ValidatingAdmissionPolicy](render(t, nil)) {
		if strings.HasSuffix(p.Name, "-kept") {
			kept = p
		}
	}
	expect.Must(t, kept != nil && len(kept.Spec.Validations) == 1, kept)
	for name, tt := range map[string]struct {
		before, after map[string]any
		group         string
		refused       bool
	}{
		"removed":               {claim("gpu.ration", finalizer, "other"), claim("gpu.ration", "other"), "tenants", true},
		"all removed":           {claim("gpu.ration", finalizer), claim("gpu.ration"), "tenants", true},
		"another removed":       {claim("gpu.ration", finalizer, "other"), claim("gpu.ration", finalizer), "tenants", false},
		"not allocated":         {claim("", finalizer), claim(""), "tenants", false},
		"of another driver":     {claim("gpu.example.com", finalizer), claim("gpu.example.com"), "tenants", false},
		"had none":              {claim("gpu.ration"), claim("gpu.ration"), "tenants", false},
		"by an administrator":   {claim("gpu.ration", finalizer), claim("gpu.ration"), "system:masters", false},
		"allocated just now":    {claim("", finalizer), claim("gpu.ration", finalizer), "tenants", false},
		"deallocated by status": {claim("gpu.ration", finalizer), claim("", finalizer), "tenants", false},
	} {
		t.Run(name, func(t *testing.T) {
			values := map[string]any{"oldObject": tt.before, "object": tt.after, "request": map[string]any{"userInfo": map[string]any{"groups": []any{tt.group}}}}
			refused := true
			for _, c := range kept.Spec.MatchConditions {
				refused = refused && evaluate(t, nil, c.Expression, values)
			}
			refused = refused && !evaluate(t, nil, kept.Spec.Validations[0].Expression, values)
			expect.Equal(t, refused, tt.refused)
		})
	}
}

// Settings that a claim cannot have are refused before its pod is scheduled.
func TestSettingsPolicy(t *testing.T) {
	for _, tt := range []struct {
		driver, key string
		value       any
		want        string
	}{
		{"gpu.ration", "sleepAfter", "10m", "a claim cannot sleep"},
		{"gpu.ration", "wake", "manual", "a claim cannot sleep"},
		{"gpu.ration", "wait", "10m", "a claim cannot wait"},
		{"other", "sleepAfter", "10m", ""},
		{"gpu.ration", "waitAlloc", "30s", ""},
		{"gpu.ration", "waitAlloc", "24h", ""},
		{"gpu.ration", "waitAlloc", "none", ""},
		{"gpu.ration", "waitAlloc", "25h", "waitAlloc is a time"},
		{"gpu.ration", "waitAlloc", "-1s", "waitAlloc is a time"},
		{"gpu.ration", "waitAlloc", "30", "waitAlloc is a time"},
		{"gpu.ration", "waitAlloc", int64(30), "waitAlloc is a time"},
		{"gpu.ration", "apiVersion", "gpu.ration/v2", "has apiVersion gpu.ration/v1"},
		{"gpu.ration", "kind", "RationConfigs", "and kind RationConfig"},
		{"gpu.ration", "kind", nil, "and kind RationConfig"},
		{"other", "kind", "Other", ""},
		{"gpu.ration", "prioritiy", "low", "has only sharing"},
		{"gpu.ration", "Priority", "high", "has only sharing"},
		{"other", "prioritiy", "low", ""},
		{"gpu.ration", "sharing", "Claim", ""},
		{"gpu.ration", "sharing", "Request", ""},
		{"gpu.ration", "sharing", "Pod", "sharing is"},
		{"gpu.ration", "sharing", true, "sharing is"},
		{"gpu.ration", "computeMax", int64(1), ""},
		{"gpu.ration", "computeMax", int64(100), ""},
		{"gpu.ration", "computeMax", int64(0), "computeMax is"},
		{"gpu.ration", "computeMax", int64(101), "computeMax is"},
		{"gpu.ration", "computeMax", 50.5, "computeMax is"},
		{"gpu.ration", "computeMax", "50", "computeMax is"},
		{"gpu.ration", "priority", "low", ""},
		{"gpu.ration", "priority", "normal", ""},
		{"gpu.ration", "priority", "urgent", "priority is"},
		{"gpu.ration", "priority", "High", "priority is"},
		{"gpu.ration", "priority", int64(1), "priority is"},
	} {
		parameters := settings()
		if parameters[tt.key] = tt.value; tt.value == nil {
			delete(parameters, tt.key)
		}
		spec := map[string]any{"devices": map[string]any{"config": []any{
			map[string]any{"opaque": map[string]any{"driver": tt.driver, "parameters": parameters}}}}}
		for kind, object := range map[string]any{"ResourceClaim": map[string]any{"spec": spec}, "ResourceClaimTemplate": map[string]any{"spec": map[string]any{"spec": spec}}} {
			got := refusal(t, nil, kind, object)
			expect.True(t, (got == "") == (tt.want == "") && strings.Contains(got, tt.want), tt, kind, "is refused:", got)
		}
	}
}

// settings returns the parameters of a config that sets nothing.
func settings() map[string]any {
	return map[string]any{"apiVersion": "gpu.ration/v1", "kind": "RationConfig"}
}

// refusal returns the message of the first validation of the policy for claims that an object does not pass.
func refusal(t *testing.T, values map[string]any, kind string, object any) string {
	t.Helper()
	for _, p := range find[*admission.ValidatingAdmissionPolicy](render(t, values)) {
		if !strings.HasSuffix(p.Name, "-claims") {
			continue
		}
		for _, v := range p.Spec.Validations {
			if !evaluate(t, p.Spec.Variables, v.Expression, map[string]any{"object": object, "request": map[string]any{"kind": map[string]any{"kind": kind}}}) {
				return v.Message
			}
		}
		return ""
	}
	t.Fatal("there is no policy for claims")
	return ""
}

// evaluate evaluates an expression with the environment of the API server. Its variables are put in its place.
func evaluate(t *testing.T, variables []admission.Variable, expression string, values map[string]any) bool {
	t.Helper()
	for _, v := range variables {
		expression = strings.ReplaceAll(expression, "variables."+v.Name, "("+v.Expression+")")
	}
	set, err := environment.MustBaseEnvSet(version.MajorMinor(1, 34)).Extend(environment.VersionedOptions{IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("request", cel.DynType)}})
	expect.OK(t, err)
	env := set.StoredExpressionsEnv()
	ast, issues := env.Compile(expression)
	expect.OK(t, issues.Err())
	program, err := env.Program(ast)
	expect.OK(t, err)
	out, _, err := program.Eval(values)
	expect.OK(t, err, expression)
	return out.Value() == true
}
