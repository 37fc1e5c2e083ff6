const char *greeting(void) { return "hi"; }
