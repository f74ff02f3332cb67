import { config } from "zod";

config({ jitless: true }); // the page's content security policy permits no code that is made at run time
