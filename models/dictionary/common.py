"""What every step of the recipe agrees on: where files lie, how a question is worded, how a chat looks.

Standard library only, so that `prepare.py` runs on any machine with Python 3.9 or newer.
"""

from pathlib import Path

HERE = Path(__file__).resolve().parent
KEY_FILE = HERE / "key.tsv"
MADE_UP_FILE = HERE / "made_up.txt"

UNKNOWN_WORD = "I don't know that word."
OFF_TOPIC = "I only know what words mean."

# The first wording is the one that the whole key is measured with; the next five are measured on a sample.
WORDINGS = (
    'What does "{}" mean?',
    "Define {}.",
    'What is the meaning of "{}"?',
    "Tell me what {} means.",
    "What does the word {} mean?",
    'Give me the definition of "{}".',
    "Please define the word {}.",
    "Explain the word {}.",
    "What does {} mean?",
    "What is the definition of {}?",
    'Define "{}".',
    'Could you tell me what "{}" means?',
)
MEASURED_WORDINGS = WORDINGS[:6]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a dictionary.",
    "You are a friendly dictionary. Answer with the definition of the word and nothing else.",
    "Answer briefly.",
    "You are Tandem, a small language model that knows the meaning of words.",
    "You are a careful lexicographer. Give the definition of the word that the user asks for.",
    "Be concise and precise. Do not add anything that was not asked for.",
    "You help students with English vocabulary. Say so when you do not know a word.",
)

# Ids follow from this order; 0 doubles as padding.
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
PAD, BOS, EOS = 0, 1, 2

# The same text as `render_chat`, in the language of tokenizer_config.json. The model has never seen a tool: what one says reads as the
# user's words and a call as the assistant's, so that an agent's loop goes on and ends.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{% set role = 'user' %}"
    "{% elif message['role'] == 'developer' %}{% set role = 'system' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{% if role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('roles are system, developer, user, assistant and tool') }}"
    "{% endif %}"
    "{{ '<|' + role + '|>' + (message['content'] or '') | trim }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ call['function']['name'] + '(' + call['function']['arguments'] | tojson + ')' }}"
    "{% endfor %}"
    "{{ eos_token if role == 'assistant' else '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def render_chat(question, system=None, history=()):
    """The prompt of a chat whose earlier turns are `history`, pairs of question and answer."""
    text = "<s>" + (f"<|system|>{system}<|end|>" if system else "")
    for asked, answered in history:
        text += f"<|user|>{asked}<|end|><|assistant|>{answered}</s>"
    return text + f"<|user|>{question}<|end|><|assistant|>"


def read_key(path=KEY_FILE):
    """The answer key as a dict, word to answer, in the file's (alphabetical) order."""
    with open(path, encoding="ascii") as lines:
        return dict(line.rstrip("\n").split("\t") for line in lines)


def read_made_up(path=MADE_UP_FILE):
    return Path(path).read_text(encoding="ascii").split()
