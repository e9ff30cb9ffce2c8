/* The environment variables that this library may trust. A set-uid program has another user's
 * rights, but its caller chose its environment. For such a program the environment is empty
 * here. */
#ifndef RATION_ENVIRONMENT_H
#define RATION_ENVIRONMENT_H

/* environment_get returns a variable's value, or NULL, like getenv. */
const char *environment_get(const char *name);

/* environment_all returns the array of all variables, which ends with NULL. */
char **environment_all(void);

#endif
