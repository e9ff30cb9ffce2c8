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
		parameters := map[string]any{"kind": "RationConfig"}
		if tt.parameters != "" {
			parameters["priority"] = tt.parameters
		}
		configs := []any{map[string]any{"opaque": map[string]any{"driver": "gpu.ration", "parameters": map[string]any{}}},
			map[string]any{"opaque": map[string]any{"driver": tt.driver, "parameters": parameters}}}
		spec := map[string]any{"devices": map[string]any{"config": configs}}
		values := map[string]any{"policies": map[string]any{"maxPriority": tt.highest}}
		for kind, object := range map[string]any{"ResourceClaim": map[string]any{"spec": spec}, "ResourceClaimTemplate": map[string]any{"spec": map[string]any{"spec": spec}}} {
			got := refusal(t, values, kind, object)
			expect.True(t, (got == "") == (tt.want == "") && strings.Contains(got, tt.want), tt, kind, "is refused:", got)
		}
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
	} {
		spec := map[string]any{"devices": map[string]any{"config": []any{
			map[string]any{"opaque": map[string]any{"driver": tt.driver, "parameters": map[string]any{tt.key: tt.value}}}}}}
		for kind, object := range map[string]any{"ResourceClaim": map[string]any{"spec": spec}, "ResourceClaimTemplate": map[string]any{"spec": map[string]any{"spec": spec}}} {
			got := refusal(t, nil, kind, object)
			expect.True(t, (got == "") == (tt.want == "") && strings.Contains(got, tt.want), tt, kind, "is refused:", got)
		}
	}
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
		EnvOptions: []cel.EnvOption{cel.Variable("object", cel.DynType), cel.Variable("request", cel.DynType)}})
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
