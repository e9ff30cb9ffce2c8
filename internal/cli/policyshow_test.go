package cli

import (
	"testing"

	"ration/check/expect"
	"ration/internal/limit"
	"ration/internal/policy"
)

// ration policy show names each device of a job whose limits differ, and tells a limit of 0 from none.
func TestLimitsOfUsersJob(t *testing.T) {
	on := func(device int, bytes uint64) policy.DeviceLimit {
		return policy.DeviceLimit{Device: device, Limited: true, Memory: bytes}
	}
	for _, c := range []struct {
		limits []policy.DeviceLimit
		want   string
	}{
		{nil, "no limit"},
		{[]policy.DeviceLimit{on(0, 2<<30), on(1, 2<<30)}, "2g"},
		{[]policy.DeviceLimit{on(0, 2<<30), on(1, 1<<30), on(2, 2<<30)}, "0=2g,1=1g,2=2g"},
		{[]policy.DeviceLimit{on(0, 0), {Device: 1}}, "0=0,1=none"},
	} {
		expect.Equal(t, limitsText(policy.Standing{Limits: c.limits}), c.want)
	}
}

// A ration that names devices is shown without the zeros of the others, as ration ps shows it.
func TestNamedLimitsOfUsersJob(t *testing.T) {
	memory, err := limit.ParseMemorySet("", "0=50g")
	expect.OK(t, err)
	u := policy.Standing{Job: "/r", Terms: policy.Terms{Ration: limit.Limits{Memory: memory}}}
	for d, bytes := range []uint64{50 << 30, 0, 0, 0} {
		u.Limits = append(u.Limits, policy.DeviceLimit{Device: d, Limited: true, Memory: bytes})
	}
	expect.Equal(t, limitsText(u), "0=50g")
	expect.Equal(t, placeText(u), "0")
	u.Limits[0].Memory, u.Runs = 0, 2 // they have it all
	expect.Equal(t, limitsText(u), "0=0 beside 2 runs")
}

// It says of each job which GPUs it is on.
func TestPlaceOfUsersJob(t *testing.T) {
	for want, u := range map[string]policy.Standing{"-": {}, "all": {Job: "/r"}, "1": {Job: "/r", GPUs: []int{1}}, "0, 2": {Job: "/r", GPUs: []int{0, 2}}} {
		expect.Equal(t, placeText(u), want)
	}
}
