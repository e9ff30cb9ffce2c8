package tui

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/usage"
)

// accountsOf is a report of users, with a gap in which nobody watched.
func accountsOf(span time.Duration, users ...string) usage.Report {
	const n = 144
	r := usage.Report{From: noon.Add(-span), To: noon, By: usage.ByUser, Watched: span.Seconds() * 0.9}
	r.Plot = &usage.Plot{From: r.From, Step: span.Seconds() / n, Watched: make([]float64, n), All: make([]usage.Point, n), Lines: make([][]usage.Point, len(users))}
	for u, user := range users {
		l := usage.Line{User: user}
		r.Plot.Lines[u] = make([]usage.Point, n)
		for i := range n {
			if i >= 50 && i < 64 {
				continue
			}
			r.Plot.Watched[i] = r.Plot.Step
			p := &r.Plot.Lines[u][i]
			size := (1 + math.Sin(float64(i)/float64(10+7*u))) / float64(1+u)
			*p = usage.Point{Held: uint64(20 * gib * size * r.Plot.Step), Seconds: 0.5 * size * r.Plot.Step}
			if u == 1 {
				p.Idle, p.Seconds = p.Held, 0
			}
			all := &r.Plot.All[i]
			all.Held, all.Idle, all.Seconds = all.Held+p.Held, all.Idle+p.Idle, all.Seconds+p.Seconds
			l.Held, l.Idle, l.Seconds = l.Held+p.Held, l.Idle+p.Idle, l.Seconds+p.Seconds
		}
		r.Lines = append(r.Lines, l)
	}
	return r
}

func TestUsageFrames(t *testing.T) {
	users := []string{"lovelace", "hopper", "a-user-with-a-long-name", "eve\x1b[2J"}
	for _, tt := range []struct {
		name          string
		width, height int
		environ, keys []string
		asleep        float64 // seconds for which jobs of the second user slept
	}{
		{"usage-80x24", 80, 24, nil, []string{"d"}, 0},
		{"usage-120x40", 120, 40, nil, []string{"d", "w"}, 0},
		{"usage-40x10", 40, 10, nil, []string{"d", "down"}, 0},
		{"usage-ascii", 80, 24, []string{"LANG=C"}, []string{"d"}, 0},
		{"usage-asleep-80x24", 80, 24, nil, []string{"d"}, 9000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := modelOf(wholeMachine(), tt.width, tt.height, tt.environ...)
			m.usage = func(span time.Duration) (usage.Report, error) {
				r := accountsOf(span, users...)
				r.Lines[1].Asleep, r.Total.Asleep = tt.asleep, tt.asleep
				return r, nil
			}
			press(t, m, tt.keys...)
			frame := m.Frame()
			fits(t, frame, tt.width, tt.height)
			golden(t, tt.name+".txt", text(frame))
		})
	}
}

// The page asks for a day, for a week, and again when what it shows is old; an answer that comes late is dropped.
func TestUsagePage(t *testing.T) {
	m := modelOf(wholeMachine(), 80, 24)
	var asked []time.Duration
	m.usage = func(span time.Duration) (usage.Report, error) {
		asked = append(asked, span)
		if span == aWeek {
			return usage.Report{}, errors.New("opening the accounts: none")
		}
		return accountsOf(span, "lovelace"), nil
	}
	press(t, m, "d")
	expect.True(t, strings.Contains(m.Frame(), "the last day") && strings.Contains(m.Frame(), "lovelace"), m.Frame())
	press(t, m, "w")
	expect.True(t, strings.Contains(m.Frame(), "the last week") && strings.Contains(m.Frame(), "opening the accounts: none"), m.Frame())
	m.Update(usageRead{span: aDay, report: accountsOf(aDay, "lovelace")})
	expect.True(t, !strings.Contains(m.Frame(), "lovelace"), "a late answer", m.Frame())
	press(t, m, "left")
	expect.True(t, slices.Equal(asked, []time.Duration{aDay, aWeek, aDay}), asked)
	s := wholeMachine()
	s.Time = noon.Add(usageAge / 2)
	m.Update(s)
	expect.True(t, m.refreshUsage() == nil, "too soon")
	m.sample.Time = noon.Add(usageAge)
	cmd := m.refreshUsage()
	expect.Must(t, cmd != nil, "never again")
	m.Update(cmd())
	expect.Equal(t, fmt.Sprint(len(asked)), "4")
	press(t, m, "esc")
	_, back := m.page.(overview)
	expect.True(t, back)
	m.usage = nil
	press(t, m, "d")
	expect.True(t, strings.Contains(m.Frame(), "use ration report"), m.Frame())
}
