/*
 * A stand-in for a name that the real library exports and the simulated one does not implement. A program
 * that looks it up finds it, as on a card. The answer is that this card cannot do it, or success, for
 * settings without an effect here. Weak, so that a definition in ../cuda or ../nvml replaces it. Included
 * before a list of FUNCTION(name), SUCCEEDS(name) and DATA(name), which the Makefile makes.
 */
#define EXPORTED __attribute__((weak, visibility("default")))
/* CUDA_ERROR_NOT_SUPPORTED or NVML_ERROR_NOT_SUPPORTED. */
#define FUNCTION(name)                                                                                       \
    EXPORTED int name(void);                                                                                 \
    int name(void) { return NOT_SUPPORTED; }
#define SUCCEEDS(name)                                                                                       \
    EXPORTED int name(void);                                                                                 \
    int name(void) { return 0; }
#define DATA(name) EXPORTED unsigned long long name;
