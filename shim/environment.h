/* The environment, as far as it can be trusted: a set-uid program runs with another user's
 * rights, and its environment is its caller's. There it is empty for this library. */
#ifndef RATION_ENVIRONMENT_H
#define RATION_ENVIRONMENT_H

/* environment_get is getenv. */
const char *environment_get(const char *name);

/* environment_all returns all variables, up to a NULL. */
char **environment_all(void);

#endif
