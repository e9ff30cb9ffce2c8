package bench

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"ration/internal/region"
)

// attach measures how long a process takes to attach to a region and claim a slot, for an
// initialised region and for one that does not exist yet. It also counts what processes leave
// behind that start and exit fast.
func attach(env Env) (Result, error) {
	var result Result
	for _, racing := range []struct {
		n, rounds int
		most      time.Duration
		target    string
	}{
		{8, env.pick(50, 2), time.Millisecond, "< 1 ms"},
		{env.pick(300, 30), env.pick(4, 1), 5 * time.Millisecond, "< 5 ms"},
	} {
		rows, err := attachReady(env, racing.n, racing.rounds, racing.most, racing.target)
		if err != nil {
			return result, err
		}
		result.Rows = append(result.Rows, rows...)
	}
	for _, n := range []int{8, 18, 32} {
		for _, lang := range languages {
			row, err := attachCold(env, lang, n, env.pick(10, 1))
			if err != nil {
				return result, err
			}
			result.Rows = append(result.Rows, row)
		}
	}
	for _, lang := range languages {
		row, err := startAndExit(env, lang, env.pick(50, 3), 16)
		if err != nil {
			return result, err
		}
		result.Rows = append(result.Rows, row)
	}
	result.Notes = []string{
		"Open and claim, timed inside each process; processes are started, and their runtime set up, before the clock starts.",
		fmt.Sprintf("All of a round pass one gate at once, and share %d CPUs: the control beside them uses the median CPU time of an attach in C and no region.", runtime.NumCPU()),
		"Spread: the least and the largest sample.",
	}
	return result, nil
}

// race makes n workers execute an order at once, calls then if it is not nil, and ends them.
func race(lang language, n int, order string, then func(*crew) error) ([][]float64, error) {
	c, err := newCrew(lang, n)
	if err != nil {
		return nil, err
	}
	defer c.close()
	answers, err := c.atOnce(always("%s", order))
	if err != nil {
		return nil, err
	}
	if then != nil {
		if err := then(c); err != nil {
			return nil, err
		}
	}
	return answers, c.end()
}

func leaveAll(c *crew) error {
	_, err := c.all(always("slots 0"))
	return err
}

// attachReady lets n processes at a time attach to a region that is initialised.
func attachReady(env Env, n, rounds int, most time.Duration, target string) (rows []Row, err error) {
	took, spent, fast, control := map[language]Samples{}, map[language]Samples{}, map[language]int{}, Samples{}
	err = withPair(largeLimit, func(p pair) error {
		for round := range rounds {
			env.Say(fmt.Sprintf("%d processes attach to a ready region, round %d of %d", n, round+1, rounds))
			for _, lang := range languages {
				answers, err := race(lang, n, fmt.Sprintf("open %s %d", p[lang].path, largeLimit), leaveAll)
				if err != nil {
					return err
				}
				for _, a := range answers {
					took[lang], spent[lang] = append(took[lang], a[1]), append(spent[lang], a[2])
					if region.Role(a[0]) == region.FastPath {
						fast[lang]++
					}
				}
			}
			// For comparison: as many processes released at once, which use as much CPU time and no
			// region.
			slices.Sort(spent[inC])
			answers, err := race(inC, n, fmt.Sprintf("burn %.0f", spent[inC].Percentile(50)), nil)
			if err != nil {
				return err
			}
			for _, a := range answers {
				control = append(control, a[0])
			}
		}
		return nil
	})
	for _, lang := range languages {
		name := fmt.Sprintf("attach, %d racing", n)
		p50, p99 := took[lang].at(50, name).in(lang), took[lang].at(99, name).in(lang)
		p50.Note = fmt.Sprintf("%d of %d on the fast path", fast[lang], len(took[lang]))
		rows = append(rows, p50, p99.judge(float64(most), target), spent[lang].at(99, "  its CPU time").in(lang))
	}
	return append(rows, control.at(99, "  control").in(inC)), err
}

// attachCold lets n processes at a time start on a region that does not exist.
func attachCold(env Env, lang language, n, rounds int) (Row, error) {
	var took Samples
	var roles [4]int
	oneEach := true
	for round := range rounds {
		env.Say(fmt.Sprintf("%d processes race for a new region, round %d of %d", n, round+1, rounds))
		err := inRegion(func(path string) error {
			answers, err := race(lang, n, fmt.Sprintf("open %s %d", path, largeLimit), leaveAll)
			won := 0
			for _, a := range answers {
				took = append(took, a[1])
				roles[int(a[0])]++
				if region.Role(a[0]) == region.Initialiser {
					won++
				}
			}
			oneEach = oneEach && won == 1
			return err
		})
		if err != nil {
			return Row{}, err
		}
	}
	row := took.at(50, fmt.Sprintf("new region, %d", n)).in(lang)
	row.Target, row.Verdict = "1 winner", OK
	if !oneEach {
		row.Verdict = Over
	}
	row.Note = fmt.Sprintf("%d rounds: %d initialisers, %d fast, %d waited, %d helped",
		rounds, roles[region.Initialiser], roles[region.FastPath], roles[region.Waited], roles[region.Helped])
	return row, nil
}

// startAndExit starts and ends n processes, round after round, half of them without
// leaving their slot, and counts what they left behind.
func startAndExit(env Env, lang language, rounds, n int) (Row, error) {
	left := 0.0
	err := inRegion(func(path string) error {
		for round := range rounds {
			env.Say(fmt.Sprintf("%d processes start and end, round %d of %d", n, round+1, rounds))
			_, err := race(lang, n, fmt.Sprintf("open %s %d", path, largeLimit), func(c *crew) error {
				_, err := c.all(func(i int) string { // the others hold something when they end
					return [...]string{"slots 0", "live 1"}[i%2]
				})
				return err
			})
			if err != nil {
				return err
			}
		}
		r, err := region.Open(path, region.Options{NoCreate: true})
		if err != nil {
			return err
		}
		defer r.Close()
		if _, err := r.Reap(); err != nil {
			return err
		}
		processes, err := r.Processes()
		if left = float64(len(processes)); r.Used(0) != 0 {
			left++
		}
		return err
	})
	row := Row{Name: "left by fast exits", Language: lang, Value: left, Low: left, High: left, Samples: rounds * n}
	row.Note = fmt.Sprintf("%d rounds of %d, half exit without leaving", rounds, n)
	return row.withTarget(row.Value, 0, "0"), err
}
