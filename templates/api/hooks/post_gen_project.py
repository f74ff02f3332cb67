{{ shared("post_gen_project.py") }}
