package bench

import (
	"fmt"
	"runtime"
	"time"

	"ration/internal/abi"
)

// scale measures whether writers slow each other down. The processes may outnumber
// the CPUs, so it measures CPU time: waiting for a CPU takes none, waiting for the
// cache line of another writer does.
func scale(env Env) (Result, error) {
	var result Result
	for _, where := range []struct {
		name   string
		device func(i int) int
	}{
		{"own devices", func(i int) int { return i % abi.Devices }},
		{"one device", func(int) int { return 0 }},
	} {
		var first Row
		for _, n := range []int{1, 2, 4, 8, 16, 32} {
			env.Say(fmt.Sprintf("%d processes, %s", n, where.name))
			rows, err := measureScale(env, n, fmt.Sprintf("%2d on %s", n, where.name), where.device)
			if err != nil {
				return result, err
			}
			if n == 1 {
				first = rows[0]
			} else if where.name == "own devices" {
				rows[0] = rows[0].withTarget(rows[0].Value, 1.5*first.Value, "≤ 1.5 × 1")
			}
			result.Rows = append(result.Rows, rows...)
		}
	}
	result.Notes = []string{
		fmt.Sprintf("CPU time for each charge; M/s: all processes together, on %d CPUs. Beyond that they share CPUs.", runtime.NumCPU()),
		fmt.Sprintf("Of 32 processes on own devices, two share each of %d. On one device all change one word: that is the price of an exact limit.", abi.Devices),
	}
	return result, nil
}

// measureScale measures n processes that charge without pause, in each language.
func measureScale(env Env, n int, name string, device func(int) int) (rows []Row, err error) {
	cpu, rate, bare := map[language]Samples{}, map[language]Samples{}, Samples{}
	for range env.pick(5, 1) {
		for _, lang := range languages {
			err := inRegion(func(path string) error {
				c, err := openCrew(lang, n, path, largeLimit)
				if err != nil {
					return err
				}
				defer c.close()
				done, err := c.atOnce(func(i int) string {
					return fmt.Sprintf("scale %d %d", env.pause(200*time.Millisecond), device(i))
				})
				if err != nil {
					return err
				}
				var ops, spent float64
				begin, end := done[0][2], done[0][3]
				for _, d := range done {
					ops, spent, begin, end = ops+d[0], spent+d[1], min(begin, d[2]), max(end, d[3])
				}
				cpu[lang], rate[lang] = append(cpu[lang], spent/ops), append(rate[lang], ops/(end-begin)*1e9)
				if lang != inC {
					return nil
				}
				add, err := c.order(0, "add %d", 500_000)
				if err == nil {
					bare = append(bare, add[0])
				}
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	}
	for _, lang := range languages {
		row := cpu[lang].row(name, Nanoseconds).in(lang).relativeTo(bare.row("", Nanoseconds))
		row.PerSecond = rate[lang].row("", Count).Value
		rows = append(rows, row)
	}
	return rows, nil
}
