package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"ration/internal/limit"
)

// reap measures how long a survivor waits for the memory of a process that held
// the whole limit and was killed in the middle of its work.
func reap(env Env) (Result, error) {
	const bytes = 10 * uint64(limit.GiB)
	took, short := map[language]Samples{}, map[language]float64{}
	err := withPair(bytes, func(survivors pair) error {
		deaths := env.pick(200, 5)
		for n := range deaths {
			env.Say(fmt.Sprintf("death %d of %d", n+1, deaths))
			for _, lang := range languages {
				if err := kill(lang, survivors[lang].path, bytes); err != nil {
					return err
				}
				numbers, err := survivors[lang].order(0, "ask %d", bytes)
				if errors.Is(err, errRefused) {
					short[lang]++
					continue
				}
				if err != nil {
					return err
				}
				took[lang] = append(took[lang], numbers[0])
			}
		}
		return nil
	})
	var rows []Row
	for _, lang := range languages {
		p99 := took[lang].at(99, "after a death").in(lang)
		all := Row{Name: "bytes not got back", Language: lang, Value: short[lang], Low: short[lang], High: short[lang], Samples: len(took[lang])}
		rows = append(rows, took[lang].at(50, "after a death").in(lang), p99.judge(float64(10*time.Millisecond), "< 10 ms"), all.withTarget(all.Value, 0, "0"))
	}
	return Result{Rows: rows, Notes: []string{
		fmt.Sprintf("Victims hold all of %v, charging and returning without pause, and die of SIGKILL.", limit.Size(bytes)),
		"Timed: a survivor's charge of all their bytes, once the kernel has released the victim's locks. Both are of one language.",
	}}, err
}

// kill starts a worker that takes the whole limit, and kills it.
func kill(lang language, path string, bytes uint64) error {
	c, err := openCrew(lang, 1, path, bytes)
	if err != nil {
		return err
	}
	defer c.close()
	if _, err := c.order(0, "hold %d", bytes); err != nil {
		return err
	}
	time.Sleep(rand.N(2 * time.Millisecond)) // so that it dies at another point of a change each time
	return c.workers[0].Kill()
}
