package machine

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/region"
)

// A job whose processes slept and have ended is not asleep, and nothing has woken it.
func TestNobodySleeps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	slot, err := r.Claim("notebook")
	expect.OK(t, err)
	expect.OK(t, errors.Join(slot.Charge(0, abi.Data, 1<<20), r.SetSleep(abi.Falling, false), r.SetSleep(abi.Asleep, false)))
	asleep, err := ReadJob(path)
	expect.OK(t, err)
	expect.Equal(t, asleep.Sleep, Asleep)
	r.Close()
	ended, err := ReadJob(path)
	expect.OK(t, err)
	expect.Equal(t, ended.Sleep, "")
	ended.State = Idle // as the job of a user under a policy
	expect.Equal(t, len(sleepEvents(&asleep, &ended, time.Now())), 0)
}

// A job that falls asleep and wakes has an event of each, and the same event twice has the same identity.
func TestSleepEvents(t *testing.T) {
	at := func(sleep string, sleeps uint64) *Machine {
		return &Machine{Jobs: []Job{{Name: "nb", Path: "/jobs/nb/region", Owner: "anna", Created: time.Unix(1, 0), State: Running, Sleep: sleep, Sleeps: sleeps,
			Devices: []Device{{Limited: true, Limit: 8 << 30, Aside: 3 << 30}}}}}
	}
	kinds := func(before, after *Machine) (out []EventID, text string) {
		for _, e := range Events(before, after, time.Now()) {
			if e.Kind == JobSlept || e.Kind == JobWoke {
				out, text = append(out, e.ID()), e.Text
			}
		}
		return out, text
	}
	slept, text := kinds(at(FallingAsleep, 1), at(Asleep, 1))
	expect.True(t, len(slept) == 1 && slept[0].Kind == JobSlept && text == "job nb of anna sleeps: 3 GiB of GPU memory is in host memory", slept, text)
	again, _ := kinds(&Machine{}, at(Asleep, 1))
	expect.True(t, len(again) == 1 && again[0] == slept[0], "noticed by another process it is", again)
	next, _ := kinds(at("", 1), at(Asleep, 2))
	expect.True(t, len(next) == 1 && next[0] != slept[0], "the next time it is", next)
	awake := at("", 1)
	awake.Jobs[0].SleepSince = time.Unix(2, 0)
	woke, text := kinds(at(Waking, 1), awake)
	expect.True(t, len(woke) == 1 && woke[0].Kind == JobWoke && text == "job nb of anna is awake", woke, text)
	unable, tired := at("", 1), at("", 1)
	tired.Jobs[0].CannotSleep = "it cannot sleep: it shares\x1b memory"
	unable.Jobs[0].CannotSleep = "it works"
	var cannot []Event
	for _, e := range append(Events(at("", 1), tired, time.Now()), Events(tired, unable, time.Now())...) {
		if e.Kind == JobCannotSleep {
			cannot = append(cannot, e)
		}
	}
	expect.True(t, len(cannot) == 1 && cannot[0].Text == "job nb of anna should sleep, and cannot: it shares? memory" && cannot[0].ID().Slot == 1, cannot)
	// A process that looks later gives the event the time at which it happened, not that of its look.
	when := time.Now().Add(-time.Hour).UTC()
	for sleep, kind := range map[string]string{Asleep: JobSlept, "": JobWoke} {
		late := at(sleep, 1)
		late.Jobs[0].SleepSince = when
		all := slices.DeleteFunc(Events(&Machine{}, late, time.Now()), func(e Event) bool { return e.Kind == JobStarted })
		expect.True(t, len(all) == 1 && all[0].Kind == kind && all[0].Time.Equal(when), "at the first look there is", all)
	}
	none, _ := kinds(at(Asleep, 1), at(Waking, 1))
	expect.True(t, len(none) == 0, "while it wakes there is", none)
}
