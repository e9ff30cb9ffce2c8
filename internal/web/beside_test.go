package web

import (
	"testing"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/machine"
)

// The limit of a job beside the policy in force is not handed out on the page, and what it holds is in use.
func TestBesidePolicy(t *testing.T) {
	defer func(was func() func(*machine.Job) bool) { besidePolicy = was }(besidePolicy)
	for _, beside := range []bool{false, true} {
		besidePolicy = func() func(*machine.Job) bool { return func(*machine.Job) bool { return beside } }
		m := webtest.Machine(1, 1, 1)
		m.Jobs[0].Devices = m.Jobs[0].Devices[:1]
		d := &m.Jobs[0].Devices[0]
		d.Limited, d.Limit, d.Used = true, 130*webtest.GiB, webtest.GiB
		h := newHub(Options{})
		held := func() *share { return h.holdingsOf(m).on(m.Devices[0].Device, h.holder(&m.Jobs[0])) }
		if s := held(); s.used != webtest.GiB || (s.limit == 0) != beside || (s.limits == 0) != beside || (s.others == 1) != beside {
			t.Errorf("beside the policy: %v, got %+v", beside, s)
		}
		alone := *m
		alone.Devices = nil // no driver
		if of, _ := withDevices(&alone); len(of.Devices) != 1 || (of.Devices[0].Rations == 0) != beside {
			t.Errorf("beside the policy: %v, without a driver, got %+v", beside, of.Devices)
		}
		d.Used = 0
		expect.Equal(t, held().others, 0, "a job without memory, beside the policy:", beside)
	}
}
