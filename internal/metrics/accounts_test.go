package metrics

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/usage"
	"ration/machine"
)

// totals are accounts for tests.
type totals struct {
	jobs, users map[usage.Subject]usage.Sums
	err         error
}

func (t totals) JobTotals(of []usage.Subject) (map[usage.Subject]usage.Sums, error) {
	out := map[usage.Subject]usage.Sums{}
	for _, s := range of {
		if sums, known := t.jobs[s]; known {
			out[s] = sums
		}
	}
	return out, t.err
}

func (t totals) UserTotals() (map[usage.Subject]usage.Sums, error) { return t.users, t.err }

// exampleAccounts are the accounts of example.
func exampleAccounts() totals {
	return totals{
		jobs: map[usage.Subject]usage.Sums{
			{Owner: "lovelace", Job: "train", Device: "GPU-b"}: {Held: 100 * gib, Idle: 25 * gib, Measured: 3e9, Sampled: 1.5e9, Asleep: 60e9},
			{Owner: "eve", Job: "elsewhere", Device: "GPU-b"}:  {Held: gib},
		},
		users: map[usage.Subject]usage.Sums{
			{Owner: "lovelace"}:         {Held: 120 * gib, Idle: 25 * gib, Measured: 4e9, Shared: 1e9, Sampled: 1.5e9, Asleep: 90e9},
			{UID: 7, Owner: "a\xffb\n"}: {Held: gib},
			{UID: 8, Owner: "a\xfeb\n"}: {Held: gib}, // the same label
		},
	}
}

// If the accounts cannot be read, their counters are missing: they do not begin at 0.
func TestNoAccounts(t *testing.T) {
	got := scrape(t, example(), Options{Jobs: true, Accounts: totals{err: errors.New("damaged")}})
	expect.True(t, !strings.Contains(got, "byte_seconds") && !strings.Contains(got, "gpu_seconds") && strings.Contains(got, "ration_job_processes"), got)
	got = scrape(t, example(), Options{Accounts: exampleAccounts()})
	expect.True(t, !strings.Contains(got, "byte_seconds"), "with the series of jobs turned off", got)
}

// A job has counters of the accounts for the devices that it has used, or that an earlier job of its name has used.
func TestUsedDevices(t *testing.T) {
	m := example()
	devices := []machine.Device{{Device: 0, UUID: "GPU-a", Limited: true}, {Device: 1, UUID: "GPU-b", Limited: true, Limit: gib}}
	m.Jobs = []machine.Job{{Name: "train", Owner: "lovelace", State: machine.Running, Created: m.Jobs[0].Created, Path: m.Jobs[0].Path, Devices: devices}}
	for _, tt := range []struct {
		peak uint64 // of device 0
		jobs map[usage.Subject]usage.Sums
		want []string
	}{
		{want: nil},
		{peak: 1, want: []string{"0"}},
		{jobs: exampleAccounts().jobs, want: []string{"1"}},
		{peak: 1, jobs: exampleAccounts().jobs, want: []string{"0", "1"}},
	} {
		devices[0].Peak = tt.peak
		got := scrape(t, m, Options{Jobs: true, Accounts: totals{jobs: tt.jobs}})
		for _, device := range []string{"0", "1"} {
			there := strings.Contains(got, `ration_job_memory_byte_seconds_total{device="`+device+`"`)
			expect.Equal(t, there, slices.Contains(tt.want, device), tt.want, got)
		}
	}
}

// A user sees only that user's totals at the socket.
func TestVisibleTotals(t *testing.T) {
	got := scrape(t, &machine.Machine{}, Options{Jobs: true, Accounts: exampleAccounts(), Visible: func(uid int) bool { return uid == 0 }})
	expect.True(t, strings.Contains(got, `ration_user_memory_byte_seconds_total{user="lovelace"}`) && strings.Count(got, "ration_user_memory_byte_seconds_total{") == 1, got)
}

// The number of users with series is bounded. A user with thousands of delegated UIDs takes none from others.
func TestBoundedUsers(t *testing.T) {
	defer func(old func(int) int) { accountOf = old }(accountOf)
	accountOf = func(uid int) int {
		if uid >= 100_000 {
			return 1000
		}
		return uid
	}
	users := map[usage.Subject]usage.Sums{{UID: 1001, Owner: "ada"}: {Held: 1}}
	for i := range 3000 {
		users[usage.Subject{UID: 100_000 + i, Owner: fmt.Sprint(100_000 + i)}] = usage.Sums{Held: 100}
	}
	got := scrape(t, &machine.Machine{}, Options{Jobs: true, Accounts: totals{users: users}})
	expect.Equal(t, strings.Count(got, "ration_user_memory_byte_seconds_total{"), MaxUsers)
	expect.True(t, strings.Contains(got, `ration_user_memory_byte_seconds_total{user="ada"} 1`))
}
