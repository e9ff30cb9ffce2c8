package agent

import "net/http"

// The API is versioned by its paths: in /v1/... fields are only added, so that commands and agents of different
// versions understand each other. If an agent does not know a path, commands work without it.
//
// headerVersion has the agent's version in each answer, for ration doctor: after an upgrade an agent goes on
// as it was until it is started again.
const headerVersion = "Ration-Version"

// withVersion adds the version to each answer.
func withVersion(version string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(headerVersion, version)
		next.ServeHTTP(w, r)
	})
}
