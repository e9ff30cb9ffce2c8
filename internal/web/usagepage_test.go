package web

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/usage"
)

// The accounts are for those who have the token, and never on the page for everybody.
func TestUsageAccess(t *testing.T) {
	asked := 0
	lines := []usage.Line{{User: "lovelace"}, {User: hostileNames[0]}}
	give := func(o *Options) {
		o.Usage = func(from, to time.Time, plot bool) (usage.Report, error) {
			asked++
			return week(usage.ByUser, lines), nil
		}
	}
	p := serve(t, webtest.Machine(1, 1, 1), give)
	without := func(r *http.Request) { r.Header.Del("Cookie") }
	for _, path := range []string{"usage?usage=week", "?usage=week"} {
		status, text, _ := p.ask("GET", path, nil, without)
		expect.True(t, status == http.StatusForbidden && !strings.Contains(text, "lovelace") && asked == 0, path, status)
		status, text, _ = p.ask("GET", path, nil, nil)
		expect.True(t, status == http.StatusOK && strings.Contains(text, "lovelace") && !strings.Contains(text, hostileNames[0]) && strings.Contains(text, "&lt;script&gt;"), path, status)
		asked = 0
	}
	for _, query := range []string{"", "?usage=", "?usage=year", "?usage=../day"} {
		status, _, _ := p.ask("GET", "usage"+query, nil, nil)
		expect.Equal(t, status, http.StatusBadRequest, query)
	}
	none := serve(t, webtest.Machine(1, 1, 1), nil)
	status, _, _ := none.ask("GET", "usage?usage=day", nil, nil)
	expect.Equal(t, status, http.StatusNotFound)
	_, text, _ := none.ask("GET", "?usage=day", nil, nil)
	expect.True(t, !strings.Contains(text, "usage-heading"))
}

// Any selection is answered: what lies outside of the plots is cut off, and nonsense is everything.
func TestUsageSelection(t *testing.T) {
	r := week(usage.ByUser, []usage.Line{{User: "lovelace"}})
	first, last := r.From.Unix(), r.To.Unix()
	var got [2]int64
	p := serve(t, webtest.Machine(1, 1, 1), func(o *Options) {
		o.Usage = func(from, to time.Time, plot bool) (usage.Report, error) {
			if !plot {
				got = [2]int64{from.Unix(), to.Unix()}
			}
			return week(usage.ByUser, []usage.Line{{User: "lovelace"}}), nil
		}
	})
	for query, want := range map[string][2]int64{
		fmt.Sprintf("from=%d&to=%d", first+3600, last-3600):      {first + 3600, last - 3600},
		fmt.Sprintf("from=0&to=%d", first+7200):                  {first, first + 7200},
		fmt.Sprintf("from=%d&to=9223372036854775807", last-3600): {last - 3600, last},
		fmt.Sprintf("from=%d&to=%d", last, first):                {},
		"from=-9223372036854775808&to=9223372036854775807":       {},
		"from=x&to=y": {},
	} {
		got = [2]int64{}
		status, text, _ := p.ask("GET", "usage?usage=week&"+query, nil, nil)
		expect.True(t, status == http.StatusOK && got == want && !strings.Contains(text, "NaN"), query, status, got, want)
	}
	broken := serve(t, webtest.Machine(1, 1, 1), func(o *Options) {
		o.Usage = func(time.Time, time.Time, bool) (usage.Report, error) {
			return usage.Report{}, errors.New("there are no accounts")
		}
	})
	_, text, _ := broken.ask("GET", "usage?usage=day", nil, nil)
	expect.True(t, strings.Contains(text, "there are no accounts."), text)
}
