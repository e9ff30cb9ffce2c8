package limit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ration/check/expect"
)

func TestFromEnv(t *testing.T) {
	for _, tt := range []struct {
		name    string
		environ []string
		want    []string // as Environ renders it
	}{
		{"nothing", []string{"PATH=/bin", "CUDA_DEVICE_MEMORY_LIMITS=x", "RATION_COMPUTE_ROUNDS=y", "odd"}, nil},
		{"HAMi-core's limits",
			[]string{"CUDA_DEVICE_MEMORY_LIMIT_0=3000m", "CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_SM_LIMIT=0"},
			[]string{"CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_MEMORY_LIMIT_0=3000m", "CUDA_DEVICE_SM_LIMIT=none"}},
		{"every kind",
			[]string{"CUDA_DEVICE_SM_LIMIT_15=30", "CUDA_DEVICE_MEMORY_LIMIT=12.5%"},
			[]string{"CUDA_DEVICE_MEMORY_LIMIT=12.5%", "CUDA_DEVICE_SM_LIMIT_15=30%"}},
		{"the first of two", []string{"CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_MEMORY_LIMIT=x"},
			[]string{"CUDA_DEVICE_MEMORY_LIMIT=1g"}},
		{"a cap of HAMi-core's",
			[]string{"CUDA_DEVICE_SM_LIMIT=30", "CUDA_DEVICE_SM_LIMIT_1=40", "GPU_CORE_UTILIZATION_POLICY=FORCE"},
			[]string{"RATION_COMPUTE_MAX=30%", "RATION_COMPUTE_MAX_1=40%"}},
		{"a cap of HAMi-core's and our own", // whichever variable comes first
			[]string{"GPU_CORE_UTILIZATION_POLICY=force", "CUDA_DEVICE_SM_LIMIT=30", "CUDA_DEVICE_SM_LIMIT_1=40", "RATION_COMPUTE_MAX_1=none"},
			[]string{"RATION_COMPUTE_MAX=30%", "RATION_COMPUTE_MAX_1=none"}},
		{"no policy of HAMi-core's", []string{"CUDA_DEVICE_SM_LIMIT=30", "GPU_CORE_UTILIZATION_POLICY=disable", "RATION_COMPUTE_MAX=50"}, []string{"RATION_COMPUTE_MAX=50%"}},
		{"the default policy", []string{"CUDA_DEVICE_SM_LIMIT=30", "GPU_CORE_UTILIZATION_POLICY=default"}, []string{"CUDA_DEVICE_SM_LIMIT=30%"}},
		{"a share, a cap and a round", []string{"CUDA_DEVICE_SM_LIMIT=30", "RATION_COMPUTE_MAX=50", "RATION_COMPUTE_ROUND=10000", "RATION_COMPUTE=strict"},
			[]string{"CUDA_DEVICE_SM_LIMIT=30%", "RATION_COMPUTE_MAX=50%", "RATION_COMPUTE_ROUND=10ms", "RATION_COMPUTE=strict"}},
	} {
		settings, err := FromEnv(tt.environ)
		got := settings.Environ()
		expect.True(t, err == nil && slices.Equal(got, tt.want), tt.name, got, err, tt.want)
	}
}

func TestFromEnvRejects(t *testing.T) {
	for _, tt := range []struct {
		entry string
		want  error
	}{
		{"CUDA_DEVICE_MEMORY_LIMIT=0=10g", errSize},
		{"CUDA_DEVICE_MEMORY_LIMIT_3=18446744073709551616", errOverflow},
		{"CUDA_DEVICE_MEMORY_LIMIT_3=101%", errPercent},
		{"CUDA_DEVICE_MEMORY_LIMIT_16=1g", errDevice},
		{"CUDA_DEVICE_MEMORY_LIMIT_01=1g", errDevice},
		{"CUDA_DEVICE_MEMORY_LIMIT_=1g", errDevice},
		{"CUDA_DEVICE_SM_LIMIT=-1", errPercent},
		{"CUDA_DEVICE_SM_LIMIT=101.5", errPercent},
		{"CUDA_DEVICE_SM_LIMIT_x=10", errDevice},
		{"RATION_COMPUTE_MAX=", errEmpty},
		{"RATION_COMPUTE_MAX=101", errPercent},
		{"RATION_COMPUTE_MAX_16=10", errDevice},
		{"RATION_COMPUTE_ROUND=1s", errRound},
		{"RATION_COMPUTE=lax", errMode},
		{"GPU_CORE_UTILIZATION_POLICY=often", errPolicy},
	} {
		settings, err := FromEnv([]string{tt.entry})
		expect.True(t, errors.Is(err, tt.want) && settings == (Settings{}), tt.entry, settings, err, "want error", tt.want)
		key, value, _ := strings.Cut(tt.entry, "=")
		expect.True(t, err == nil || strings.HasPrefix(err.Error(), fmt.Sprintf("%s=%q: ", key, value)),
			tt.entry, err, "does not name the variable and its value")
	}
}

// Where HAMi-core goes on, so do we: what it takes for no limit is none, and what it takes for the
// limit of all devices is that.
func TestFromEnvAsHAMiCore(t *testing.T) {
	for _, tt := range []struct{ environ, want string }{
		{"CUDA_DEVICE_MEMORY_LIMIT=", ""},
		{"CUDA_DEVICE_MEMORY_LIMIT_0=", ""},
		{"CUDA_DEVICE_SM_LIMIT=", ""},
		{"CUDA_DEVICE_SM_LIMIT=150", "CUDA_DEVICE_SM_LIMIT=none"},
		{"CUDA_DEVICE_SM_LIMIT=101%", "CUDA_DEVICE_SM_LIMIT=none"},
		{"CUDA_DEVICE_MEMORY_LIMIT=0x40000000", "CUDA_DEVICE_MEMORY_LIMIT=1g"},
		{"CUDA_DEVICE_MEMORY_LIMIT_0=0 CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_MEMORY_LIMIT=1g"},
		{"CUDA_DEVICE_MEMORY_LIMIT=1g CUDA_DEVICE_MEMORY_LIMIT_0=0m", "CUDA_DEVICE_MEMORY_LIMIT=1g"},
		{"CUDA_DEVICE_MEMORY_LIMIT=1g CUDA_DEVICE_MEMORY_LIMIT_0=none",
			"CUDA_DEVICE_MEMORY_LIMIT=1g CUDA_DEVICE_MEMORY_LIMIT_0=none"},
		{"CUDA_DEVICE_MEMORY_LIMIT_0=0", "CUDA_DEVICE_MEMORY_LIMIT_0=none"},
		{"CUDA_DEVICE_SM_LIMIT=30 CUDA_DEVICE_SM_LIMIT_1=0", "CUDA_DEVICE_SM_LIMIT=30%"},
	} {
		settings, err := FromEnv(strings.Fields(tt.environ))
		got := strings.Join(settings.Environ(), " ")
		expect.True(t, err == nil && got == tt.want, tt.environ, got, err, tt.want)
	}
}

func ExampleFromEnv() {
	_, err := FromEnv([]string{
		"CUDA_DEVICE_MEMORY_LIMIT=10gb!",
		"CUDA_DEVICE_MEMORY_LIMIT_16=10g",
		"CUDA_DEVICE_SM_LIMIT=-1",
	})
	fmt.Println(err)
	// Output:
	// CUDA_DEVICE_MEMORY_LIMIT="10gb!": not a size (use bytes or a number with k, m, g or t, like 10g, 1024m or 1.5g; or a percentage from 1 to 100, like 25%)
	// CUDA_DEVICE_MEMORY_LIMIT_16="10g": not a device index (use a device from 0 to 15 at the end of the name)
	// CUDA_DEVICE_SM_LIMIT="-1": not a percentage in range (use a whole percentage from 1 to 100, like 30 or 30%; or 0 for no limit)
}

func FuzzEnv(f *testing.F) {
	for _, s := range badValues {
		f.Add("CUDA_DEVICE_MEMORY_LIMIT="+s, "CUDA_DEVICE_SM_LIMIT="+s, "RATION_COMPUTE_MAX="+s)
	}
	f.Add("CUDA_DEVICE_MEMORY_LIMIT=10g", "CUDA_DEVICE_MEMORY_LIMIT_1=25%", "CUDA_DEVICE_SM_LIMIT=30")
	f.Add("CUDA_DEVICE_MEMORY_LIMIT_16=1g", "CUDA_DEVICE_SM_LIMIT_0=0", "RATION_COMPUTE_MAX=2.5%")
	f.Add("=", "", "CUDA_DEVICE_MEMORY_LIMIT")
	f.Add("CUDA_DEVICE_SM_LIMIT=30", "GPU_CORE_UTILIZATION_POLICY=force", "RATION_COMPUTE_ROUND=10ms")
	f.Add("RATION_COMPUTE_MAX=30", "GPU_CORE_UTILIZATION_POLICY=disable", "RATION_COMPUTE=strict")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		settings, err := FromEnv([]string{a, b, c})
		if err != nil {
			expect.True(t, settings == (Settings{}) && errors.As(err, new(*InputError)), "got", settings, "with", err)
			return
		}
		back, err := FromEnv(settings.Environ())
		expect.True(t, err == nil && back == settings, settings.Environ(), "reads back as", back, err, settings)
	})
}
