package web

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/limit"
	"ration/machine"
)

// Nobody gets anything without the token of this page, which is a cookie of its folder after the
// first request.
func TestToken(t *testing.T) {
	p := serve(t, webtest.Machine(1, 1, 1), nil)
	without := func(r *http.Request) { r.Header.Del("Cookie") }
	with := func(text string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Cookie", cookieName+"="+text) }
	}
	for _, path := range []string{"", "stream"} {
		for name, change := range map[string]func(*http.Request){"without": without, "another user's": with("fedcba9876543210"), "empty": with("")} {
			status, text, _ := p.ask("GET", path, nil, change)
			expect.True(t, status == http.StatusForbidden && !strings.Contains(text, "job-0"), name, path, status)
		}
		status, _, _ := p.ask("GET", path+"?token=fedcba9876543210", nil, nil)
		expect.Equal(t, status, http.StatusForbidden, "another user's token in the address", path)
	}
	status, _, _ := p.ask("POST", "limit", url.Values{}, without)
	expect.Equal(t, status, http.StatusForbidden, "a form")
	status, text, header := p.ask("GET", "?token="+token, nil, without)
	expect.Must(t, status == http.StatusOK && strings.Contains(text, "job-0"), status)
	cookie := header.Get("Set-Cookie")
	for _, part := range []string{"Path=/abc/", "HttpOnly", "SameSite=Strict"} {
		expect.True(t, strings.Contains(cookie, part), "the cookie is", cookie)
	}
	// Who does not know the folder is told nothing, whatever the token.
	answer, err := http.Get(p.server.URL + "/?token=" + token)
	expect.OK(t, err)
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	expect.True(t, answer.StatusCode == http.StatusNotFound && !strings.Contains(string(body), "abc"), answer.StatusCode, body)
	none := serve(t, webtest.Machine(1, 1, 1), func(o *Options) { o.Token = "" })
	if status, _, _ := none.ask("GET", "", nil, with("")); status != http.StatusForbidden {
		t.Errorf("a page without a token: %d", status)
	}
}

// A page of another site gets nothing: neither by a name of its own that leads here, nor by a
// request in the name of who looks.
func TestOtherSites(t *testing.T) {
	p := serve(t, webtest.Machine(1, 1, 1), nil)
	for host, ok := range map[string]bool{"localhost:9411": true, "127.0.0.1": true, "[::1]:80": true, "LOCALHOST.": true, "x.localhost:1": true, "192.0.2.7:9411": true,
		"evil.example": false, "evil.example:9411": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false, "notlocalhost": false, "": false} {
		expect.Equal(t, isLocalName(host), ok, host)
	}
	for _, path := range []string{"", "stream", "script.js"} {
		status, _, _ := p.ask("GET", path, nil, func(r *http.Request) { r.Host = "evil.example" })
		expect.Equal(t, status, http.StatusForbidden, path, "by another name")
		status, _, _ = p.ask("GET", path, nil, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") })
		expect.Equal(t, status, http.StatusForbidden, path, "from another origin")
		status, _, _ = p.ask("GET", path, nil, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
		expect.Equal(t, status, http.StatusForbidden, path, "from another site")
	}
	// Another port of this machine is the same site to a browser, and another origin.
	for _, origin := range []string{"", "null", "http://localhost:1", "http://evil.example"} {
		set := func(r *http.Request) { r.Header.Set("Origin", origin) }
		status, text, _ := p.ask("POST", "limit", nil, set)
		expect.True(t, status == http.StatusForbidden && strings.Contains(text, "another site asks"), "a form from", origin, status, text)
	}
	status, _, _ := p.ask("GET", "?token="+token, nil, func(r *http.Request) { // a link in a mail
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Sec-Fetch-Mode", "navigate")
	})
	expect.Equal(t, status, http.StatusOK, "a link")
	public := serve(t, webtest.Machine(1, 0, 0), func(o *Options) { o.Public, o.ID, o.AnyHost = true, "", true })
	if status, _, _ := public.ask("GET", "", nil, func(r *http.Request) { r.Host = "gpu1.example" }); status != http.StatusOK {
		t.Errorf("a port that was published: %d", status)
	}
}

// Every answer says what a browser may do with it: load from here, and nothing inline.
func TestPolicy(t *testing.T) {
	p := serve(t, webtest.Machine(1, 1, 1), nil)
	for _, path := range []string{"", "style.css", "script.js", "icon.svg", "none"} {
		_, text, header := p.ask("GET", path, nil, nil)
		csp := header.Get("Content-Security-Policy")
		expect.True(t, strings.HasPrefix(csp, "default-src 'none';") && !strings.Contains(csp, "unsafe") && !strings.Contains(csp, "*") && strings.Contains(csp, "frame-ancestors 'none'"), path, csp)
		expect.True(t, header.Get("X-Content-Type-Options") == "nosniff" && header.Get("Referrer-Policy") == "no-referrer" && header.Get("Access-Control-Allow-Origin") == "", path, header)
		expect.True(t, (!strings.Contains(text, "http://") || path == "icon.svg") && !strings.Contains(text, "https://"),
			path, "names another place")
	}
}

// A limit is changed by a form of this page, of a job that is there, by who may; and by nothing
// that could be taken for a flag.
func TestLimitForm(t *testing.T) {
	var asked string
	p := serve(t, webtest.Machine(1, 2, 1), func(o *Options) {
		o.MayChange = func(j *machine.Job) bool { return j.Name == "job-0" }
		o.SetLimit = func(j machine.Job, change limit.Limits) (string, error) {
			asked = j.Name + " " + change.String()
			if change.Memory.Default == limit.MemorySize(limit.TiB) {
				return "", errors.New("the device is smaller")
			}
			return "job-0, device 0: the limit is 20 GiB now;\n  it was 8 GiB.\n", nil
		}
	})
	_, text, _ := p.ask("GET", "", nil, nil)
	_, rest, _ := strings.Cut(text, `name="form" value="`)
	form, _, _ := strings.Cut(rest, `"`)
	expect.Must(t, strings.Count(text, "limit-form") == 1 && len(form) == 32, strings.Count(text, "limit-form"), "forms, with", form)
	id := elementID(webtest.Machine(1, 2, 1).Jobs[0].ID())
	for _, tt := range []struct {
		name   string
		fields url.Values
		status int
		asked  string
		says   string
	}{
		{"memory", url.Values{"memory": {" 20g "}}, 200, "job-0 memory=20g compute=unset compute_max=unset", "the limit is 20 GiB now; it was 8 GiB."},
		{"all of it", url.Values{"memory": {"25%"}, "share": {"30"}, "cap": {"none"}, "device": {"0"}}, 200, "job-0 memory=0=25% compute=0=30% compute_max=0=none", ""},
		{"what cannot be", url.Values{"memory": {"1t"}}, 422, "job-0 memory=1t compute=unset compute_max=unset", "the device is smaller"},
		{"a flag", url.Values{"memory": {"--help"}}, 422, "", "--help"},
		{"a flag as a share", url.Values{"share": {"30 --device 1"}}, 422, "", ""},
		{"a device", url.Values{"memory": {"1g"}, "device": {"16"}}, 422, "", "not a device"},
		{"nothing", url.Values{}, 422, "", "nothing to change"},
		{"another's job", url.Values{"memory": {"1g"}, "job": {elementID(webtest.Machine(1, 2, 1).Jobs[1].ID())}}, 422, "", "may not"},
		{"no job", url.Values{"memory": {"1g"}, "job": {"job-0"}}, 422, "", "not there"},
		{"another page's form", url.Values{"memory": {"1g"}, "form": {"00000000000000000000000000000000"}}, 403, "", "not of this page"},
	} {
		asked = ""
		fields := url.Values{"form": {form}, "job": {id}}
		for k, v := range tt.fields {
			fields[k] = v
		}
		status, text, _ := p.ask("POST", "limit", fields, nil)
		expect.True(t, status == tt.status && asked == tt.asked && strings.Contains(text, tt.says), tt.name, status, text, "asked", asked)
	}
	// Without the script it is a page.
	status, text, _ := p.ask("POST", "limit", url.Values{"form": {form}, "job": {id}, "memory": {"20g"}}, func(r *http.Request) { r.Header.Set("Accept", "text/html") })
	expect.True(t, status == http.StatusOK && strings.Contains(text, `role="alert">job-0, device 0: the limit is 20 GiB now`), status)
	other := serve(t, webtest.Machine(1, 1, 1), nil)
	if status, _, _ := other.ask("POST", "limit", url.Values{"form": {form}}, nil); status != http.StatusForbidden {
		t.Errorf("another page takes the form: %d", status)
	}
}
