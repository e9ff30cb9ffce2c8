package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/region"
)

const gib = 1 << 30

// machineOf returns the rations of a machine with devices of these sizes in GiB.
func machineOf(sizes ...uint64) *rations {
	r := &rations{policy: &Policy{}, driver: &gpu.Driver{}}
	for i, size := range sizes {
		r.driver.Devices = append(r.driver.Devices, gpu.Device{Index: i, Total: limit.Size(size * gib)})
	}
	return r
}

// on returns limits of memory on each device, in GiB.
func on(memory ...uint64) (l region.Limits) {
	for d, size := range memory {
		l.Memory[d] = abi.MakeLimit(size * gib)
	}
	return l
}

// A limit of nothing is no absent limit, and neither is known without the devices.
func TestRationText(t *testing.T) {
	r := machineOf(140, 140)
	for want, l := range map[string]region.Limits{
		" has 8 GiB on GPU 1": on(0, 8), " has nothing now": on(0, 0), " has no limit of memory": {Memory: [abi.Devices]abi.Limit{abi.MakeLimit(0)}},
	} {
		expect.Equal(t, r.rationText(" has ", l), want)
		expect.Equal(t, machineOf().rationText(" has ", l), "")
	}
}

// none is what a job without processes holds.
var none [abi.Devices]uint64

// Thirty users with 8 GiB each share two devices that have room for seventeen each.
func TestPlaceSpreads(t *testing.T) {
	r := machineOf(140, 140)
	var others []booked
	var users [2]int
	for uid := range 30 {
		at, _ := launch.Choose(1, r.candidates(on(8, 8), beside{booked: others}, nil), inNoRation)
		limits := on(8, 8).Restrict(at)
		expect.OK(t, r.checkBeside(limits, beside{booked: others}, nil))
		others = append(others, booked{uid: uid, limits: limits})
		users[at.Devices()[0]]++
	}
	expect.Equal(t, users, [2]int{15, 15})
}

// A GPU that does not answer gets no ration, and the rations that are on it keep nobody from the others.
func TestPlaceBesideFailed(t *testing.T) {
	r := machineOf(140, 0)
	r.driver.Devices[1].Failed = errors.New("lost")
	ration, err := limit.ParseLimits("memory=8g")
	expect.OK(t, err)
	limits, err := r.limitsOf(ration)
	expect.OK(t, err)
	others := []booked{{uid: 1, limits: on(0, 70).Restrict(region.PlaceAt(1))}}
	at, _ := launch.Choose(1, r.candidates(limits, beside{booked: others}, nil), inNoRation)
	expect.Equal(t, at, region.PlaceAt(0))
	expect.OK(t, r.checkBeside(limits.Restrict(at), beside{booked: others}, nil))
	expect.True(t, r.failed(region.PlaceAt(1)) && !r.failed(at), "which has failed")
}

func TestCandidates(t *testing.T) {
	from := func(device int, full bool, lose int, free int64) launch.Candidate {
		return launch.Candidate{Device: device, Full: full, Lose: lose, Free: free}
	}
	r := machineOf(10, 10, 10)
	others := []booked{{uid: 1, limits: on(8, 3, 3)}, {uid: 2, limits: on(0, 0, 7)}}
	expect.True(t, slices.Equal(r.candidates(on(4, 4, 4), beside{booked: others}, nil), []launch.Candidate{from(0, true, 0, 2*gib), from(1, false, 0, 7*gib), from(2, true, 0, 0)}))
	expect.True(t, slices.Equal(r.candidates(on(4, 4, 4), beside{booked: others}, []int{1, 2}), []launch.Candidate{from(0, false, 1, 2*gib), from(1, false, 0, 7*gib), from(2, false, 1, 0)}))
	expect.True(t, slices.Equal(r.candidates(on(4, 0, 4), beside{booked: others}, []int{2}), []launch.Candidate{from(0, true, 0, 2*gib), from(2, false, 1, 0)}), "a device that the ration does not have")
	r.policy.Overbook = true
	expect.True(t, slices.Equal(r.candidates(on(4, 4, 0), beside{booked: others}, nil), []launch.Candidate{from(0, false, 0, 2*gib), from(1, false, 0, 7*gib)}))
}

func TestWanted(t *testing.T) {
	ration := func(text string) limit.Limits {
		l, err := limit.ParseLimits(text)
		expect.OK(t, err)
		return l
	}
	two, one := machineOf(10, 10), machineOf(10)
	expect.Equal(t, two.wanted(ration("memory=8g")), 1, "the default")
	expect.Equal(t, one.wanted(ration("memory=8g devices=1")), 0, "a single device is not hidden")
	expect.Equal(t, one.wanted(ration("memory=8g")), 0, "a single device is not hidden by default")
	expect.Equal(t, two.wanted(ration("memory=8g devices=all")), 0)
	expect.Equal(t, two.wanted(ration("memory=8g devices=2")), 0)
	expect.Equal(t, two.wanted(ration("memory=0=8g,1=2g")), 0, "it names its devices")
	expect.Equal(t, two.wanted(ration("memory=8g compute=1=30%")), 0, "it names its devices")
	expect.Equal(t, two.wanted(ration("memory=0=8g,1=2g devices=1")), 1)
	two.driver.Devices[1].MIG = true
	expect.Equal(t, two.wanted(ration("memory=8g devices=1")), 0, "a divided device")
}

func TestRestrict(t *testing.T) {
	l := on(8, 8).Restrict(region.PlaceAt(1))
	expect.Equal(t, l.Visible(), region.PlaceAt(1))
	expect.Equal(t, l.Memory[0], abi.MakeLimit(0))
	expect.Equal(t, l.Memory[1].Bytes(), uint64(8*gib))
	expect.Equal(t, l.Memory[5], abi.MakeLimit(0), "a device that came later")
	run := on(4, 4)
	r := machineOf(10, 10)
	_, err := r.restrictRun(&run, askedRun{}, l, none)
	expect.OK(t, err)
	expect.Equal(t, run, on(4, 4).Restrict(region.PlaceAt(1)))
	named, err := limit.ParseLimits("memory=0=4g")
	expect.OK(t, err)
	_, err = r.restrictRun(&run, askedRun{Limits: named}, l, none)
	expect.True(t, errors.Is(err, ErrRun))
	two, err := limit.ParseLimits("memory=4g devices=2")
	expect.OK(t, err)
	run = on(4, 4)
	_, err = r.restrictRun(&run, askedRun{Limits: two}, l, none)
	expect.True(t, errors.Is(err, ErrRun), "more devices than the ration has:", err)
}

// A run that its user's ration can never have is refused before there is a job, so on no GPU that could be named.
func TestCouldCarveNamesNoGPU(t *testing.T) {
	p, err := Parse("config.toml", []byte("[everybody]\nmemory = \"8g\"\ncompute_max = \"50%\"\n"))
	expect.OK(t, err)
	for text, gpus := range map[string]*rations{"of a GPU,": machineOf(140, 140), "of GPU 0,": machineOf(140)} {
		gpus.policy = p
		for _, run := range []string{"memory=1g", "memory=9g compute_max=20%"} {
			_, err := gpus.couldCarve(4242, []string{run})
			expect.True(t, errors.Is(err, ErrRun) && strings.Contains(err.Error(), text), run, err)
		}
	}
}

// The first ration of a user is on the GPUs that a run names, and on no more than the rule gives.
func TestPlaceForRun(t *testing.T) {
	r := machineOf(10, 40, 20)
	r.seen = &seen{held: &holdings{}}
	for _, c := range []struct {
		ration, run string
		at          region.Place
		fails       bool
	}{
		{"memory=8g", "memory=1g", 0, false},
		{"memory=8g", "memory=2=1g", region.PlaceAt(2), false},
		{"memory=8g", "memory=0=1g,2=1g", 0, true},
		{"memory=8g devices=2", "memory=2=1g", region.PlaceAt(1, 2), false},
		{"memory=8g devices=2", "memory=1=1g", region.PlaceAt(1, 2), false},
		{"memory=8g devices=all", "memory=1=1g", 0, false},
	} {
		ration, err := limit.ParseLimits(c.ration)
		expect.OK(t, err)
		asked, err := limit.ParseLimits(c.run)
		expect.OK(t, err)
		whole, err := r.limitsOf(ration)
		expect.OK(t, err)
		at, err := r.placeFor(4242, ration, whole, asked)
		expect.True(t, at == c.at && errors.Is(err, ErrRun) == c.fails && (err == nil) != c.fails, c.ration, c.run, at, err)
	}
}

// A job whose ration is lent has nothing of the devices that it sees. One without a limit has more than nothing.
func TestIsLent(t *testing.T) {
	unlimited := on(0, 0)
	unlimited.Memory[0] = abi.Unlimited
	restrict := func(l region.Limits, d int) region.Limits { return l.Restrict(region.PlaceAt(d)) }
	for i, c := range []struct {
		l    region.Limits
		lent bool
	}{
		{on(0, 0), true}, {restrict(on(0, 0), 1), true}, {on(0, 4), false}, {restrict(on(4, 4), 0), false},
		{unlimited, false}, {restrict(unlimited, 0), false}, {restrict(region.Limits{}, 0), false}, {region.Limits{}, false},
	} {
		expect.Equal(t, isLent(&c.l), c.lent, i)
	}
}

func TestSuits(t *testing.T) {
	r := machineOf(10, 10, 10)
	expect.True(t, r.suits(region.PlaceAt(1), 1, on(4, 4, 4)))
	expect.True(t, !r.suits(region.PlaceAt(1, 2), 1, on(4, 4, 4)), "too many")
	expect.True(t, !r.suits(region.PlaceAt(1), 1, on(4, 0, 4)), "not of this ration")
	expect.True(t, !r.suits(region.PlaceAt(3), 1, on(4, 4, 4)), "no such device")
	expect.True(t, !r.suits(region.PlaceAt(1, 3), 1, on(4, 4, 4)), "a device, and one that the machine does not have")
	expect.True(t, r.suits(region.Limits{}.Visible(), 0, on(4, 4, 4)), "all")
	expect.True(t, !r.suits(region.Limits{}.Visible(), 1, on(4, 4, 4)), "all are not one")
	expect.True(t, !r.suits(region.PlaceAt(1), 0, on(4, 4, 4)), "one is not all")
}

func TestSees(t *testing.T) {
	expect.OK(t, sees(region.PlaceAt(0, 1), region.PlaceAt(1)))
	expect.OK(t, sees(region.PlaceAt(0), 0))
	for _, at := range []region.Place{region.PlaceAt(1), region.PlaceAt(0, 1)} {
		err := sees(region.PlaceAt(0), at)
		expect.True(t, errors.Is(err, ErrPlaced), at, err)
	}
}

// A user that was to lose a ration starts a program meanwhile: the next choice is another device.
func TestChooseFittingTriesAgain(t *testing.T) {
	choices := [][]launch.Candidate{{{Device: 0, Lose: 1}, {Device: 1, Lose: 2}}, {{Device: 0, Full: true}, {Device: 1, Lose: 2}}}
	calls := 0
	candidates := func() []launch.Candidate {
		calls++
		return choices[min(calls, len(choices))-1]
	}
	fits := func(at region.Place) error {
		if at.Has(0) {
			return &noRoom{}
		}
		return nil
	}
	at, _, err := chooseFitting(1, candidates, fits)
	expect.OK(t, err)
	expect.Equal(t, at, region.PlaceAt(1))
	expect.Equal(t, calls, 2)
}

// If it fits nowhere, the error says of how many devices it could have been any.
func TestChooseFittingFitsNowhere(t *testing.T) {
	full := []launch.Candidate{{Device: 0, Full: true}, {Device: 1, Full: true}}
	calls := 0
	candidates := func() []launch.Candidate {
		calls++
		return full
	}
	_, _, err := chooseFitting(1, candidates, func(region.Place) error { return &noRoom{among: 1} })
	var room *noRoom
	expect.True(t, errors.As(err, &room), err)
	expect.Equal(t, room.among, 2)
	expect.Equal(t, calls, 1, "another try changes nothing")
}

// A run is on a device where it fits, also if another one has more left.
func TestRestrictRunWhereItFits(t *testing.T) {
	asked, err := limit.ParseLimits("memory=0=8g,1=2g devices=1")
	expect.OK(t, err)
	run := on(8, 2)
	_, err = machineOf(10, 10).restrictRun(&run, askedRun{Limits: asked}, on(6, 4), none)
	expect.OK(t, err)
	expect.Equal(t, run.Visible(), region.PlaceAt(1))
}

// What the user's other programs hold is not free for a run, although no run has it.
func TestRestrictRunBesideOthers(t *testing.T) {
	asked, err := limit.ParseLimits("memory=4g devices=1")
	expect.OK(t, err)
	run := on(4, 4)
	why, err := machineOf(10, 10).restrictRun(&run, askedRun{Limits: asked}, on(8, 6), [abi.Devices]uint64{5 * gib, gib})
	expect.OK(t, err)
	expect.Equal(t, run.Visible(), region.PlaceAt(1))
	expect.Equal(t, why, "GPU 1 had 5 GiB of the ration free (GPU 0 had 3 GiB)")
	run = on(4, 4)
	why, err = machineOf(10, 10).restrictRun(&run, askedRun{Limits: asked}, on(8, 6), [abi.Devices]uint64{5 * gib, 7 * gib})
	expect.OK(t, err)
	expect.Equal(t, why, "GPU 0 had 3 GiB of the ration free (GPU 1 had 0 B)", "more than it may")
}

// CUDA_VISIBLE_DEVICES says among which GPUs of the ration a run is, by the numbers that the user's programs see.
func TestRestrictRunVisible(t *testing.T) {
	r := machineOf(10, 10, 10, 10)
	users := on(8, 4, 8, 4).Restrict(region.PlaceAt(1, 2, 3))
	for words, want := range map[string]region.Place{
		"memory=2g devices=1 visible=0":             region.PlaceAt(1),
		"memory=2g devices=1 visible=2,0 project=x": region.PlaceAt(1),
		"memory=2g devices=2 visible=2,0":           region.PlaceAt(1, 3),
		"memory=2g devices=1":                       region.PlaceAt(2),
		"memory=2g devices=all visible=0":           region.PlaceAt(1, 2, 3),
		"memory=2g devices=1 visible=3":             0,
		"memory=2g devices=1 visible=":              0,
		"project=x visible=0":                       region.PlaceAt(1, 2, 3),
	} {
		asked, err := parseRun(strings.Fields(words))
		expect.OK(t, err)
		run := on(2, 2, 2, 2)
		why, err := r.restrictRun(&run, asked, users, none)
		if want == 0 {
			expect.True(t, errors.Is(err, ErrRun) && strings.Contains(err.Error(), "has 0 left that it may use, of those in CUDA_VISIBLE_DEVICES (ration ps)"), words, err)
			continue
		}
		expect.OK(t, err)
		expect.Equal(t, run.Visible(), want, words)
		expect.Equal(t, strings.HasSuffix(why, ", of those in CUDA_VISIBLE_DEVICES"), asked.visible != nil && asked.Devices.IsSet() && asked.Devices != limit.AllDevices, why)
	}
}

// The service moves an idle user by itself, so only to where there is room, and it looks at the machine before.
func TestPlaceFree(t *testing.T) {
	r := machineOf(140, 140)
	_, _, err := r.placeFree(4242, 1, on(100, 100))
	expect.True(t, errors.Is(err, errUnread) && r.unread, err)
	r.seen = &seen{at: time.Now(), held: &holdings{outside: map[int][abi.Devices]uint64{0: gigabytes(118)}}}
	r.seen.held.used = gigabytes(118)
	limits, _, err := r.placeFree(4242, 1, on(100, 100))
	expect.OK(t, err)
	expect.Equal(t, limits.Visible(), region.PlaceAt(1))
	_, _, err = r.placeFree(4242, 0, on(100, 100))
	expect.True(t, errors.Is(err, ErrOverbooked), err)
}
